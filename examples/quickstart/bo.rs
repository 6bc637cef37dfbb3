//! Bo's side: sled, in a child process. He prints one fact a line.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use xmtp::core::delivery::{DeliveryCursor, Filter, Scope};
use xmtp::core::subscription::CatchUp;
use xmtp::core::subscription::progress::Position;
use xmtp::{Account, Client, GrpcTransport};
use xmtp_storage_sled::{DatabaseKey, SledStorage};

use crate::Failure;
use crate::alice::text_of;

const BAR_CELLS: usize = 8;

/// Plays Bo: `first DIR ENDPOINT` or `again DIR ENDPOINT CURSOR`.
pub(crate) async fn run(arguments: &[String]) -> Result<(), Failure> {
    let [part, home, endpoint, rest @ ..] = arguments else {
        return Err("bo needs a part, a folder and an endpoint".into());
    };
    let storage = SledStorage::options(home)
        .key(DatabaseKey::new([8; 32]))
        .open()?;
    let bo = Client::builder()
        .storage(storage)
        .transport(GrpcTransport::connect_lazy(endpoint)?)
        .account(Account::from_wallet_secret(&[12; 32])?)
        .build()
        .await?;
    println!("stack {}", bo.stack());
    match (part.as_str(), rest) {
        ("first", []) => first(&bo).await,
        ("again", [cursor]) => again(&bo, cursor.parse()?).await,
        _ => Err("bo does not know this part".into()),
    }
}

async fn first(bo: &Client) -> Result<(), Failure> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    println!("inbox {}", bo.inbox_id().to_hex());
    ordered(&mut orders, "sync").await?;
    let mut status = bo.catch_up();
    status.caught_up(Duration::from_secs(30)).await?;
    let caught_up = status.current();
    println!("show {}", bars(&caught_up));
    let groups = bo.conversations().list().await?;
    let group = groups.first().ok_or("bo joined nothing")?;
    println!("joined {}", group.name().await?);
    let is_full = caught_up.processed_fraction() == Some(1.0);
    println!("bars {}", if is_full { "full" } else { "not full" });
    group.send_text("hi alice").await?;
    println!("answered alice");
    ordered(&mut orders, "consume").await?;
    consume(bo, "seven").await?;
    // Seven is handed over and never acknowledged: the process is killed while it waits here.
    ordered(&mut orders, "never").await
}

async fn again(bo: &Client, cursor: DeliveryCursor) -> Result<(), Failure> {
    consume(bo, "eight").await?;
    let messages = bo.messages();
    let mut replay = messages.replay(cursor, Scope::All, Filter::all()).await?;
    let mut words = Vec::new();
    while words.last().map(String::as_str) != Some("eight") {
        let item = replay.next().await.ok_or("the replay ended")??;
        if let Some(word) = text_of(&item.content).filter(|word| word != "hi alice") {
            words.push(word);
        }
    }
    println!("replayed {}", words.join(" "));
    bo.close().await?;
    Ok(())
}

/// Prints what the default consumer hands over, until a word; that one stays unacknowledged.
async fn consume(bo: &Client, until: &str) -> Result<(), Failure> {
    let mut consumer = bo.messages().consume(Scope::All, Filter::all()).await?;
    while let Some(message) = consumer.next().await? {
        let Some(word) = text_of(&message.content).filter(|word| word != "hi alice") else {
            continue;
        };
        println!("handed {word}");
        if until == "seven" {
            println!("cursor {}", message.cursor());
        }
        if word == until {
            // Forgetting the consumer keeps its lease, as a killed process does.
            std::mem::forget(consumer);
            return Ok(());
        }
    }
    Err("the stream ended".into())
}

/// Waits for an order of Alice's process.
async fn ordered(orders: &mut Lines<BufReader<Stdin>>, order: &str) -> Result<(), Failure> {
    match orders.next_line().await? {
        Some(line) if line == order => Ok(()),
        found => Err(format!("bo waited for {order}, and was told {found:?}").into()),
    }
}

/// Draws how much is received and processed of what the backend had.
fn bars(catch_up: &CatchUp) -> String {
    let (mut received, mut processed) = (0, 0);
    for topic in &catch_up.topics {
        let target = topic.target.unwrap_or_default();
        let through = match &topic.position {
            Position::Processed { processed, .. } => *processed >= target,
            Position::Welcomes { unresolved } => unresolved.is_empty(),
        };
        received += usize::from(topic.received >= target);
        processed += usize::from(through);
    }
    let total = catch_up.topics.len().max(1);
    let bar = |done: usize| {
        let cells = BAR_CELLS * done / total;
        format!(
            "[{}{}] {:3}%",
            "#".repeat(cells),
            ".".repeat(BAR_CELLS - cells),
            100 * done / total
        )
    };
    let caught_up = if catch_up.is_caught_up() {
        "caught up"
    } else {
        "behind"
    };
    format!(
        "received {}  processed {}  {caught_up}",
        bar(received),
        bar(processed)
    )
}
