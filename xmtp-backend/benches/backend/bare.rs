//! A database without a server in front of it: what limits the server.

use std::hint::black_box;

use rusqlite::{Connection, OptionalExtension};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Statement};
use xmtp_backend::config::Database;

use crate::rows::{EXPIRY_NS, Row};
use crate::store::{Store, serve};

/// Heads of one bare read, where a read has many.
const HEADS: usize = 1000;

pub(crate) enum Bare {
    Sqlite(Connection),
    Postgres(Postgres),
}

impl Bare {
    /// Creates an empty database with the tables of the server.
    pub(crate) async fn create(store: &Store) -> Self {
        let database = store.database();
        serve(&database).await.stop().await;
        Self::open(&database).await
    }

    /// Opens the database of a server.
    pub(crate) async fn open(database: &Database) -> Self {
        match database {
            Database::Sqlite(path) => Self::Sqlite(open_sqlite(path).expect("it opens")),
            Database::Postgres(settings) => {
                let opened = Postgres::open(settings.url.expose()).await;
                Self::Postgres(opened.expect("it opens"))
            }
            Database::Memory => unreachable!("memory has nothing underneath"),
        }
    }

    /// Inserts rows in one synced transaction and returns the last id.
    pub(crate) async fn insert(&self, rows: &[Row], last: i64) -> i64 {
        match self {
            Self::Sqlite(connection) => insert_sqlite(connection, rows, last).expect("stored"),
            Self::Postgres(postgres) => postgres.insert(rows, last).await.expect("stored"),
        }
    }

    /// Reads a page of a topic and returns how many rows it has.
    pub(crate) async fn select(&self, topic: &[u8], after: i64, limit: i64) -> usize {
        match self {
            Self::Sqlite(connection) => {
                select_sqlite(connection, topic, after, limit).expect("it is read")
            }
            Self::Postgres(postgres) => {
                let rows = postgres.select(topic, after, limit).await;
                rows.expect("it is read")
            }
        }
    }

    /// Reads the heads of topics and returns how many there are.
    pub(crate) async fn heads(&self, topics: &[Vec<u8>]) -> usize {
        match self {
            Self::Sqlite(connection) => heads_sqlite(connection, topics).expect("it is read"),
            Self::Postgres(postgres) => postgres.heads(topics).await.expect("it is read"),
        }
    }
}

fn open_sqlite(path: &std::path::Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    for (name, value) in [("journal_mode", "wal"), ("synchronous", "full")] {
        connection.pragma_update(None, name, value)?;
    }
    Ok(connection)
}

fn insert_sqlite(connection: &Connection, rows: &[Row], last: i64) -> rusqlite::Result<i64> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let insert = "INSERT INTO envelope VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = connection.prepare_cached(insert)?;
    let head = "INSERT INTO topic_head VALUES (?1, ?2)
                ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id";
    let mut head = connection.prepare_cached(head)?;
    let mut id = last;
    for row in rows {
        id += 1;
        let bytes = row.payload.len() as i64;
        let (topic, payload) = (&row.topic, &row.payload);
        insert.execute((
            id,
            topic,
            id,
            EXPIRY_NS + id,
            row.hash,
            false,
            bytes,
            payload,
        ))?;
        head.execute((topic, id))?;
    }
    let sequence = "UPDATE sequence SET last_sequence_id = ?1";
    connection.prepare_cached(sequence)?.execute([id])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(id)
}

fn select_sqlite(
    connection: &Connection,
    topic: &[u8],
    after: i64,
    limit: i64,
) -> rusqlite::Result<usize> {
    let sql = "SELECT sequence_id, topic, message_hash, server_ns, expiry_ns,
                      is_commit_or_proposal, payload
               FROM envelope WHERE topic = ?1 AND sequence_id > ?2 ORDER BY sequence_id LIMIT ?3";
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query((topic, after, limit))?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        for column in 0..7 {
            black_box(row.get_ref(column)?);
        }
        count += 1;
    }
    Ok(count)
}

fn heads_sqlite(connection: &Connection, topics: &[Vec<u8>]) -> rusqlite::Result<usize> {
    let sql = "SELECT last_sequence_id FROM topic_head WHERE topic = ?1";
    let mut select = connection.prepare_cached(sql)?;
    let mut found = 0;
    for topic in topics {
        let head: Option<i64> = select.query_row([topic], |row| row.get(0)).optional()?;
        found += usize::from(head.is_some());
    }
    Ok(found)
}

/// The values of a statement.
type Values<'a> = [&'a (dyn ToSql + Sync)];

/// One connection and what it has prepared.
pub(crate) struct Postgres {
    client: Client,
    insert: Statement,
    raise: Statement,
    select: Statement,
    heads: Statement,
}

impl Postgres {
    async fn open(url: &str) -> Result<Self, Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let insert = "INSERT INTO envelope
            SELECT * FROM unnest($1::bigint[], $2::bytea[], $1::bigint[], $3::bigint[],
                $4::bytea[], $5::boolean[], $6::integer[], $7::bytea[])";
        let raise = "INSERT INTO topic_head
            SELECT given.topic, max(given.id) FROM unnest($1::bytea[], $2::bigint[])
                AS given (topic, id) GROUP BY given.topic
            ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id";
        let select = "SELECT sequence_id, topic, message_hash, server_ns, expiry_ns,
                is_commit_or_proposal, payload
            FROM envelope WHERE topic = $1 AND sequence_id > $2 ORDER BY sequence_id LIMIT $3";
        let heads = "SELECT topic, last_sequence_id FROM topic_head WHERE topic = ANY ($1)";
        Ok(Self {
            insert: client.prepare(insert).await?,
            raise: client.prepare(raise).await?,
            select: client.prepare(select).await?,
            heads: client.prepare(heads).await?,
            client,
        })
    }

    /// Sends the whole transaction at once.
    async fn insert(&self, rows: &[Row], last: i64) -> Result<i64, Error> {
        let count = rows.len() as i64;
        let ids: Vec<i64> = (last + 1..=last + count).collect();
        let expiries: Vec<i64> = ids.iter().map(|id| EXPIRY_NS + id).collect();
        let topics: Vec<&[u8]> = rows.iter().map(|row| &row.topic[..]).collect();
        let hashes: Vec<&[u8]> = rows.iter().map(|row| &row.hash[..]).collect();
        let commits = vec![false; rows.len()];
        let lengths: Vec<i32> = rows.iter().map(|row| row.payload.len() as i32).collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.payload[..]).collect();
        let columns: &Values<'_> = &[
            &ids, &topics, &expiries, &hashes, &commits, &lengths, &payloads,
        ];
        let heads: &Values<'_> = &[&topics, &ids];
        let (begun, inserted, raised, committed) = tokio::join!(
            biased;
            self.client.batch_execute("BEGIN"),
            self.client.execute(&self.insert, columns),
            self.client.execute(&self.raise, heads),
            self.client.batch_execute("COMMIT"),
        );
        begun?;
        inserted?;
        raised?;
        committed?;
        Ok(last + count)
    }

    async fn select(&self, topic: &[u8], after: i64, limit: i64) -> Result<usize, Error> {
        let place: &Values<'_> = &[&topic, &after, &limit];
        let rows = self.client.query(&self.select, place).await?;
        for row in &rows {
            black_box(row.try_get::<_, &[u8]>(6)?);
        }
        Ok(rows.len())
    }

    async fn heads(&self, topics: &[Vec<u8>]) -> Result<usize, Error> {
        let mut found = 0;
        for topics in topics.chunks(HEADS) {
            found += self.client.query(&self.heads, &[&topics]).await?.len();
        }
        Ok(found)
    }
}
