//! Sending: one caller, each message durable before it is published and confirmed by ordered
//! processing, against encryption and one flushed row each.

use std::path::Path;

use openmls::group::MlsGroup;
use rusqlite::Connection;
use tokio::runtime::Runtime;
use xmtp::{Account, Client, DatabaseKey, Group, SqliteStorage};
use xmtp_backend::config::Database;
use xmtp_proto::GroupId;
use xmtp_proto::content::EncodedContent;
use xmtp_testkit::TestBackend;

use crate::group::{Member, plaintext};
use crate::nothing::NothingProvider;
use crate::report::{Failure, Name, Report};
use crate::sqlite::{self, KEY, Synchronous};

/// Bytes of content of each message.
const CONTENT_BYTES: usize = 1024;
/// Messages of one slice.
const MESSAGES: usize = 16;

/// Measures both.
pub(crate) fn measure(report: &mut Report, runtime: &Runtime) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    // What the backend stores is not the sender's work.
    let started = TestBackend::start_with(|config| config.database = Database::Memory);
    let mut backend = runtime.block_on(started);
    let (client, group) = runtime.block_on(client(&backend, folder.path()))?;
    let mut bare = Bare::open(&folder.path().join("bare.db"))?;
    let name = Name {
        measure: "send",
        label: None,
        unit: "msg/s",
    };
    let rounds = report.rounds();
    let mut sent = 0;
    report.figure(&name, |run| {
        for _ in 0..rounds {
            let contents: Vec<_> = (sent..sent + MESSAGES).map(content).collect();
            sent += MESSAGES;
            run.ours(|| runtime.block_on(send(&group, &contents)))?;
            run.limit(|| bare.send(&contents))?;
        }
        Ok(rounds * MESSAGES)
    })?;
    runtime.block_on(client.close())?;
    runtime.block_on(backend.stop());
    Ok(())
}

async fn client(backend: &TestBackend, folder: &Path) -> Result<(Client, Group), Failure> {
    let storage = SqliteStorage::options(folder.join("client.db"));
    let client = Client::builder()
        .storage(storage.key(DatabaseKey::new(KEY)).open()?)
        .transport(backend.in_process())
        .account(Account::from_wallet_secret(&[11; 32])?)
        .build()
        .await?;
    let group = client.conversations().new_group("bench", &[]).await?;
    Ok((client, group))
}

fn content(place: usize) -> Vec<u8> {
    let mut content = vec![b'.'; CONTENT_BYTES];
    content[..8].copy_from_slice(&place.to_be_bytes());
    content
}

async fn send(group: &Group, contents: &[Vec<u8>]) -> Result<(), Failure> {
    for content in contents {
        let content = EncodedContent {
            content: content.clone().into(),
            ..Default::default()
        };
        group.send(&content).await?;
    }
    Ok(())
}

/// A member whose state is in memory, and a table of what it sent.
struct Bare {
    member: Member,
    id: GroupId,
    group: MlsGroup,
    provider: NothingProvider,
    connection: Connection,
}

impl Bare {
    fn open(path: &Path) -> Result<Self, Failure> {
        let connection = sqlite::client_writer(path, Synchronous::Full)?;
        let table = "CREATE TABLE sent (id INTEGER PRIMARY KEY, value BLOB NOT NULL)";
        connection.execute_batch(table)?;
        let member = Member::in_memory()?;
        let (id, group) = member.create()?;
        Ok(Self {
            member,
            id,
            group,
            provider: NothingProvider::default(),
            connection,
        })
    }

    fn send(&mut self, contents: &[Vec<u8>]) -> Result<(), Failure> {
        let sql = "INSERT INTO sent (value) VALUES (?1)";
        for content in contents {
            let plaintext = plaintext(&self.id, content);
            let signer = &*self.member.installation;
            let message = self
                .group
                .create_message(&self.provider, signer, &plaintext)?;
            self.connection
                .prepare_cached(sql)?
                .execute([message.to_bytes()?])?;
        }
        Ok(())
    }
}
