//! The sizes, counts and waits that no setting moves, each with its unit and its reason.
//!
//! What an operator may move is in [`crate::config`]; what both sides of the wire must agree on is
//! in `xmtp_proto::limits`.

use std::time::Duration;

use xmtp_proto::limits::{ENVELOPE_OVERHEAD_BYTES, MESSAGES_FRAME_BYTES};

/// The most publish requests waiting for the writer, in requests. A full queue holds callers back.
pub(crate) const WRITE_QUEUE_REQUESTS: usize = 1024;

/// The most publish requests of one commit, in requests: enough to share a sync of the disk, few
/// enough to keep the first of them from waiting long.
pub(crate) const GROUP_COMMIT_REQUESTS: usize = 256;

/// Payload bytes after which a group is committed without waiting for more requests: 8 MiB.
pub(crate) const GROUP_COMMIT_BYTES: usize = 8 * 1024 * 1024;

/// Steps of SQLite's machine between two looks at the clock, in steps.
pub(crate) const READ_CHECK_STEPS: i32 = 1000;

/// How long one question to the node of a chain may take.
pub(crate) const CHAIN_ANSWER_TIME: Duration = Duration::from_secs(3);

/// How long all questions of one call may take; less than a publish has by default, so that a slow
/// chain is told as an absent verdict.
pub(crate) const CHAIN_TIME: Duration = Duration::from_secs(8);

/// The largest answer of a node: 2 MiB, above a block with the hashes of its transactions.
pub(crate) const CHAIN_ANSWER_BYTES: usize = 2 * 1024 * 1024;

/// Questions to one node at a time over all calls, in questions. Together with
/// [`CHAIN_ANSWER_BYTES`] and the chains that are named this bounds what of their answers is held.
pub(crate) const CHAIN_QUESTIONS: usize = 32;

/// Questions to nodes at a time of one call, in questions.
pub(crate) const CHAIN_QUESTIONS_PER_CALL: usize = 8;

/// The longest wallet signature that is asked about, with all that it is wrapped in: 40 KiB.
/// Together with the code of the check it fits the 48 KiB that a node evaluates (EIP-3860).
pub(crate) const WALLET_SIGNATURE_BYTES: usize = 40 * 1024;

/// How much older than the newest block the block of a wallet signature may be when its update is
/// first stored, in seconds.
pub(crate) const WALLET_BLOCK_AGE_SECONDS: u64 = 1800;

/// Read-only database connections, and so reads at a time.
pub(crate) const READ_CONNECTIONS: usize = 4;

/// How long a connection waits for another one's lock on the database file.
pub(crate) const DATABASE_BUSY_WAIT: Duration = Duration::from_secs(5);

/// Prepared statements kept by each connection, in statements.
pub(crate) const STATEMENT_CACHE: usize = 32;

/// Pages of the log from which on it is moved into the database file, in pages: 4 MB. The log grows
/// beyond them only while a read holds an older snapshot.
pub(crate) const CHECKPOINT_PAGES: i32 = 1000;

/// Pages of the log from which on publishes wait until the reads that hold it are over and it is
/// empty, in pages: 64 MB. Reads that overlap would let it grow for ever.
pub(crate) const LOG_PAGES: i32 = 16_000;

/// Payload bytes that one tail keeps for its reader: 32 MiB. Beyond them the tail reads the store.
pub(crate) const TAIL_BYTES: usize = 32 * 1024 * 1024;

/// Rows of one page when a tail reads the store, in rows.
pub(crate) const TAIL_PAGE_ROWS: usize = 256;

/// Payload bytes of one page when a tail reads the store: 4 MiB.
pub(crate) const TAIL_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How long to wait before another tail is opened after one could not be.
pub(crate) const TAIL_PAUSE: Duration = Duration::from_millis(200);

/// How long a connection to a database server may take to open.
pub(crate) const DATABASE_CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a database may take for an answer that needs no work, such as who it is, and for what it
/// still says of a transaction that is given up.
pub(crate) const DATABASE_ANSWER_TIME: Duration = Duration::from_secs(5);

/// How long creating or changing the tables may take, other servers that do it first included.
pub(crate) const DATABASE_SETUP_TIME: Duration = Duration::from_secs(30 * 60);

/// How long a replica may be behind when a server starts: 5 minutes. Then the start fails.
pub(crate) const REPLICA_WAIT: Duration = Duration::from_secs(5 * 60);

/// How often it is said that a replica is still behind.
pub(crate) const REPLICA_WARNING: Duration = Duration::from_secs(10);

/// How much longer than a publish a fence may take, which waits for publishes that are under way.
pub(crate) const FENCE_SLACK: Duration = Duration::from_secs(30);

/// How long a connection may be silent before it is probed, and the time between probes.
pub(crate) const DATABASE_KEEPALIVE: Duration = Duration::from_secs(10);

/// How much longer than a server's own limit a caller waits for it before it hangs up.
pub(crate) const DATABASE_SLACK: Duration = Duration::from_secs(2);

/// How often a read is tried in all when its connection is lost, in attempts.
pub(crate) const READ_ATTEMPTS: u32 = 3;

/// How often a publish is tried in all when it fails before its commit, in attempts.
pub(crate) const PUBLISH_ATTEMPTS: u32 = 3;

/// How often a poll is tried in a row when the server cancels it, in attempts.
pub(crate) const POLL_ATTEMPTS: u32 = 20;

/// The most publish requests that share one transaction of a database server, in requests; one
/// gives each its own. Its topics stay locked for as long as the slowest of them takes.
pub(crate) const COMBINED_PUBLISHES: usize = 64;

/// Topics of one statement that reads heads, in topics.
pub(crate) const HEADS_OF_STATEMENT: usize = 2000;

/// How much more often a tail looks while it finds something, in times: 4.
pub(crate) const ACTIVE_POLLS: u32 = 4;

/// How long after it found something a tail still looks more often.
pub(crate) const ACTIVE_TIME: Duration = Duration::from_secs(2);

/// How long a skipped id may be missing before the boundary is asked for. Publishes that run side
/// by side fill most gaps sooner.
pub(crate) const GAP_PATIENCE: Duration = Duration::from_millis(250);

/// How long the barrier is left alone after an attempt on it ran out of time, in times of that
/// attempt: 20, so that publishes are held back for 5 % of the time at most.
pub(crate) const BARRIER_REST: u32 = 20;

/// How often it is looked whether the connection that draws boundaries still stands.
pub(crate) const BOUNDARY_CHECK: Duration = Duration::from_secs(1);

/// Rows that one step of pruning looks at, in rows; publishes wait for one step at most.
pub(crate) const PRUNE_ROWS: usize = 1000;

/// The pause after one step of pruning.
pub(crate) const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// The pause after a walk over everything that has newly expired.
pub(crate) const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);

/// After how long a walk begins with the oldest row again, to find rows that were the newest of
/// their topic when it passed them.
pub(crate) const PRUNE_WRAP: Duration = Duration::from_secs(24 * 3600);

/// Ids that a fence leaves unused at least, in ids: 2^32, more than any server gives out between
/// two backups.
pub(crate) const FENCE_IDS: u64 = 1 << 32;

/// Shards of the registry of topics, in shards; a power of two.
pub(crate) const REGISTRY_SHARDS: usize = 64;

/// Notices waiting for one session, in envelopes. Beyond them only positions are kept.
pub(crate) const MAILBOX_NOTICES: usize = 256;

/// Bytes waiting for one session: 4 MiB. Beyond them only positions are kept.
pub(crate) const MAILBOX_BYTES: usize = 4 * 1024 * 1024;

/// Update frames that wait for the one before them, in frames; past it the stream is not read.
pub(crate) const WAITING_UPDATES: usize = 128;

/// Topics that waiting updates name, in topics; past it the stream is not read. An update that was
/// read before counts whole, so the bound is this and one update.
pub(crate) const WAITING_TOPICS: usize = 1_000;

/// Topics of one statement that reads heads, in topics; a larger update takes several.
pub(crate) const HEAD_TOPICS: usize = 2_000;

/// The topics whose heads are read for new registrations of all streams, in topics per second.
/// After a fault all clients come back at once; they are let in at the rate of the database.
pub(crate) const ADMITTED_TOPICS_PER_SECOND: u32 = 200_000;

/// The topics that are let in at once before that rate holds, in topics.
pub(crate) const ADMITTED_TOPICS_BURST: u32 = 100_000;

/// Topics of one fetch turn, in topics.
pub(crate) const TURN_TOPICS: usize = 256;

/// Rows of one topic in one fetch turn, in rows.
pub(crate) const TURN_ROWS: usize = 64;

/// Bytes of one topic in one fetch turn, unless a single envelope is larger: 128 KiB.
pub(crate) const TURN_QUANTUM_BYTES: usize = 128 * 1024;

/// Bytes of one fetch turn: 4 MiB, two full frames. A stream has one turn at a time, so this is what
/// it may have fetched and not yet queued.
pub(crate) const TURN_BYTES: usize = 4 * 1024 * 1024;

/// Fetch turns and reads of heads that use the store at a time, over all streams, in reads.
pub(crate) const STREAM_READS: usize = 8;

/// Bytes that all streams have fetched and not yet queued: 512 MiB. Beyond them turns wait.
pub(crate) const FETCHED_BYTES: usize = 512 * 1024 * 1024;

/// Bytes of fetched envelopes that wait for the transports of all streams: 1 GiB. What was told to
/// streams does not count, since they share it. Beyond them the worst stream ends.
pub(crate) const UNSHARED_OUTBOUND_BYTES: usize = 1024 * 1024 * 1024;

/// The streams that a shutdown ends, in streams per second, so that their clients do not all come to
/// the next server at one instant.
pub(crate) const ENDED_STREAMS_PER_SECOND: u32 = 5_000;

/// The part of the drain time over which a shutdown may spread the ends of streams: the numerator
/// and the denominator of a fraction.
pub(crate) const ENDING_PART: (u32, u32) = (1, 2);

/// The buffer that a stream begins with for what it sends, and another for what it receives, in
/// bytes. Both grow with what passes; most streams are silent most of the time.
pub(crate) const STREAM_BUFFER_BYTES: usize = 512;

/// Encoded bytes after which a stream hands them to the transport: 32 KiB.
pub(crate) const STREAM_YIELD_BYTES: usize = 32 * 1024;

/// Frames that wait for the transport, in frames.
pub(crate) const OUTBOUND_FRAMES: usize = 64;

/// Frames of [`OUTBOUND_FRAMES`] that only control frames may use, in frames.
pub(crate) const OUTBOUND_CONTROL_FRAMES: usize = 16;

/// Bytes that wait for the transport: 16 MiB.
pub(crate) const OUTBOUND_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of [`OUTBOUND_BYTES`] that messages may use: 10 MiB, so that one acknowledgement of the
/// largest update still fits behind them.
pub(crate) const OUTBOUND_MESSAGES_BYTES: usize = 10 * 1024 * 1024;

/// Bytes of one HTTP/2 stream that wait for the socket: 64 KiB, and the frame that passes them.
pub(crate) const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Bytes of one HTTP/1.1 connection that wait, in each direction: 64 KiB, which also bounds the head
/// of a request.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 64 * 1024;

/// The silence after which an HTTP/2 connection is asked whether its other end is still there.
pub(crate) const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(60);

/// How long that question may stay unanswered.
pub(crate) const HTTP2_PING_WAIT: Duration = Duration::from_secs(20);

/// The largest request of a call that is open to everybody, configuration and health: 4 KiB.
pub(crate) const OPEN_REQUEST_BYTES: usize = 4 * 1024;

/// How long the answer of a call may take to begin, whatever its caller grants: for a call that is no
/// stream, reading the request and all of the work.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(60);

/// How long a part of an answer may wait to be read, at least; `streams.max_pong_wait_ms` raises it.
/// The largest part is a whole answer of 25 MiB.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(120);

/// The piece of an answer that a transport takes at a time: 64 KiB.
pub(crate) const ANSWER_PIECE_BYTES: usize = 64 * 1024;

/// How long a connection may be open before its other end has said by which protocol.
pub(crate) const FIRST_BYTES_TIME: Duration = Duration::from_secs(10);

/// The connections at a time, in connections; more wait until one ends.
pub(crate) const CONNECTIONS: usize = 20_000;

/// How long the listener rests after a connection that could not be accepted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a browser may rely on the answer to a preflight: two hours, the most that browsers keep.
pub(crate) const PREFLIGHT_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// The shortest pause that a caller is asked for when the server is not available.
pub(crate) const RETRY_AFTER_LEAST: Duration = Duration::from_secs(1);

/// How much longer than [`RETRY_AFTER_LEAST`] the pause may be; each caller gets its own.
pub(crate) const RETRY_AFTER_SPREAD: Duration = Duration::from_secs(4);
/// The longest bearer token, in bytes.
pub(crate) const TOKEN_BYTES: usize = 8192;

/// The most keys of a key set that can be used, in keys.
pub(crate) const KEY_SET_KEYS: usize = 64;

/// The largest key set that is read, in bytes: 256 KiB.
pub(crate) const KEY_SET_BYTES: usize = 256 * 1024;

/// How long a fetch of the key set may take.
pub(crate) const KEY_SET_FETCH_TIME: Duration = Duration::from_secs(10);

/// How often the first key set is tried before the server does not start, in attempts.
pub(crate) const KEY_SET_FIRST_ATTEMPTS: u32 = 3;

/// The pause between those attempts.
pub(crate) const KEY_SET_FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The part of the pause between two fetches that chance adds at most, as its divisor: a tenth.
pub(crate) const KEY_SET_JITTER_DIVISOR: u32 = 10;

/// Requests at a time on one HTTP/2 connection to the metrics port, in requests.
pub(crate) const METRICS_HTTP2_STREAMS: u32 = 8;

/// How often measurements are sorted into their buckets when nobody scrapes.
pub(crate) const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Spans, and records of the log, that wait for the collector; more are dropped and counted.
pub(crate) const EXPORT_QUEUE: usize = 2048;

/// Spans or records of one batch for the collector.
pub(crate) const EXPORT_BATCH: usize = 512;

/// How long the collector may take for a batch.
pub(crate) const EXPORT_TIME: Duration = Duration::from_secs(2);

/// How long a stopped program may go on sending what it has told: five seconds.
pub(crate) const TELEMETRY_FLUSH: Duration = Duration::from_secs(5);

/// What an envelope counts beside its payload, in bytes.
pub(crate) const OVERHEAD_BYTES: usize = ENVELOPE_OVERHEAD_BYTES as usize;

/// The size that message frames aim for, in bytes.
pub(crate) const FRAME_BYTES: usize = MESSAGES_FRAME_BYTES as usize;

const _: () = {
    assert!(REGISTRY_SHARDS.is_power_of_two());
    assert!(TURN_BYTES <= 8 * 1024 * 1024 && TURN_BYTES <= FETCHED_BYTES);
    assert!(OUTBOUND_BYTES <= UNSHARED_OUTBOUND_BYTES);
    assert!(HEAD_TOPICS as u64 <= ADMITTED_TOPICS_BURST as u64);
    assert!(TURN_QUANTUM_BYTES <= FRAME_BYTES && FRAME_BYTES <= TURN_BYTES);
    assert!(TURN_BYTES <= OUTBOUND_MESSAGES_BYTES && OUTBOUND_MESSAGES_BYTES < OUTBOUND_BYTES);
    assert!(CHECKPOINT_PAGES < LOG_PAGES);
    assert!(CHAIN_ANSWER_TIME.as_millis() < CHAIN_TIME.as_millis());
    assert!(CHAIN_QUESTIONS_PER_CALL < CHAIN_QUESTIONS);
    // A turn is at most twice as many frames as its bytes need, and one more.
    assert!(TURN_FRAMES + OUTBOUND_CONTROL_FRAMES <= OUTBOUND_FRAMES);
};

/// The most frames that the rows of one turn fill, in frames: any two neighbours together are
/// larger than one frame.
pub(crate) const TURN_FRAMES: usize = 2 * TURN_BYTES.div_ceil(FRAME_BYTES) + 1;
