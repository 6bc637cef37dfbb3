//! Alice's side, and the story.

use xmtp::core::delivery::{Filter, Scope};
use xmtp::{Account, Client, DatabaseKey, GrpcTransport, InboxId, SqliteStorage, content};
use xmtp_backend::{Backend, Config};

use crate::Failure;
use crate::story::{BoProcess, expect};

const WORDS: [&str; 7] = ["hello", "world", "three", "four", "five", "six", "seven"];

/// Tells the whole story.
pub(crate) async fn run() -> Result<(), Failure> {
    let home = tempfile::tempdir()?;
    let backend = Backend::start(Config::ephemeral("dev.local.quickstart")).await?;
    let endpoint = backend.endpoint();
    println!("backend   embedded, identifier dev.local.quickstart, {endpoint}");
    let told = tell(home.path(), &endpoint).await;
    backend.stop().await;
    let path = home.path().to_owned();
    home.close()?;
    told?;
    if path.exists() {
        return Err("the story left something behind".into());
    }
    println!("done      nothing lost, nothing skipped, nothing acknowledged early");
    Ok(())
}

async fn tell(home: &std::path::Path, endpoint: &str) -> Result<(), Failure> {
    let storage = SqliteStorage::options(home.join("alice.db"))
        .key(DatabaseKey::new([7; 32]))
        .open()?;
    let alice = Client::builder()
        .storage(storage)
        .transport(GrpcTransport::connect_lazy(endpoint)?)
        .account(Account::from_wallet_secret(&[11; 32])?)
        .build()
        .await?;
    println!("alice     {}", alice.stack());

    let bo_home = home.join("bo");
    let bo_home = bo_home.to_str().ok_or("the folder's name is not text")?;
    let mut bo = BoProcess::start(&["first", bo_home, endpoint])?;
    println!("bo        {}", bo.fact("stack").await?);
    let inbox = InboxId::parse_hex(&bo.fact("inbox").await?)?;

    let group = alice.conversations().new_group("ops", &[inbox]).await?;
    println!("group     \"ops\" created by alice, with bo");
    for (index, word) in WORDS.iter().enumerate() {
        let sent = group.send_text(word).await?;
        println!(
            "alice     sends {} {word} (as {})",
            index + 1,
            sent.sequence.get()
        );
    }

    bo.order("sync").await?;
    expect(&bo.fact("joined").await?, "ops")?;
    println!("bo        joined \"ops\" by his Welcome");
    expect(&bo.fact("bars").await?, "full")?;
    hear_first(&alice, &mut bo).await?;

    let cursor = consume_until_seven(&mut bo).await?;
    println!("bo        -- killed here, with 7 handed over and not acknowledged --");
    bo.kill().await?;

    group.send_text("eight").await?;
    println!("alice     sends 8 eight while bo is gone");
    let mut bo = BoProcess::start(&["again", bo_home, endpoint, &cursor])?;
    bo.fact("stack").await?;
    expect(&bo.fact("handed").await?, "seven")?;
    println!("bo        restarted: seven again (at least once)");
    expect(&bo.fact("handed").await?, "eight")?;
    println!("bo        then eight (not lost, not skipped)");
    let replayed = bo.fact("replayed").await?;
    expect(&replayed, "three four five six seven eight")?;
    println!("replay    from the cursor after 2: {replayed}");
    bo.end().await?;
    alice.close().await?;
    Ok(())
}

/// Waits until Bo's answer has come to Alice's default consumer.
async fn hear_first(alice: &Client, bo: &mut BoProcess) -> Result<(), Failure> {
    bo.fact("answered").await?;
    let mut consumer = alice.messages().consume(Scope::All, Filter::all()).await?;
    loop {
        let next = consumer.next().await?.ok_or("alice's stream ended")?;
        let text = text_of(&next.content);
        if text.as_deref() == Some("hi alice") {
            println!("alice     hears: hi alice");
            break;
        }
    }
    // The last item is acknowledged by asking for another; closing leaves it to be seen again.
    consumer.close().await?;
    Ok(())
}

/// Follows Bo's consumer until the seventh message is handed over.
async fn consume_until_seven(bo: &mut BoProcess) -> Result<String, Failure> {
    bo.order("consume").await?;
    let mut cursor = String::new();
    for (index, word) in WORDS.iter().enumerate() {
        expect(&bo.fact("handed").await?, word)?;
        println!("bo        {} {word}", index + 1);
        let at = bo.fact("cursor").await?;
        if index == 1 {
            cursor = at;
        }
    }
    Ok(cursor)
}

/// The text of a message, unless it is something else.
pub(crate) fn text_of(encoded: &[u8]) -> Option<String> {
    let decoded = xmtp::proto::content::EncodedContent::default();
    let mut decoded = decoded;
    prost::Message::merge(&mut decoded, encoded).ok()?;
    content::decode_text(&decoded).ok().map(str::to_owned)
}
