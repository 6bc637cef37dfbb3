//! The queues in front of the writer, and the wakes behind it.

use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use xmtp_core::limits::ACTIVE_DATABASE_POLL_INTERVAL;
use xmtp_core::runtime::{Job, Lane, NativeRuntime, Runtime, RuntimeExt, SimulatedRuntime};
use xmtp_core::storage::{
    Database, Domain, Durability, Layout, Priority, Raw, Read, Snapshot, Storage, StorageError,
    Table, WRITER_PATIENCE, WriteTxn,
};
use xmtp_core::testing::memory::{MemoryDisk, MemoryStorage};

const ROWS: Table<u64, Raw> = Table::new(900, "rows", Layout::Numbered, Domain::Messages);
const OTHER: Table<u64, Raw> = Table::new(901, "other", Layout::Numbered, Domain::Groups);

/// A simulated runtime whose lanes and readers stand still until they are told to run a job.
#[derive(Clone, Debug)]
struct Stalled {
    inner: SimulatedRuntime,
    jobs: Arc<Jobs>,
    reads: Arc<Jobs>,
}

#[derive(Default)]
struct Jobs(Mutex<Vec<Job>>);

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("jobs")
    }
}

impl Lane for Jobs {
    fn run(&self, job: Job) {
        self.0.lock().push(job);
    }
}

impl Jobs {
    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn run_one(&self) {
        let job = self.0.lock().remove(0);
        job();
    }
}

impl Stalled {
    fn new() -> Self {
        Self {
            inner: SimulatedRuntime::new(1),
            jobs: Arc::default(),
            reads: Arc::default(),
        }
    }
}

impl Runtime for Stalled {
    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }
    fn monotonic(&self) -> Duration {
        self.inner.monotonic()
    }
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(deadline)
    }
    fn start(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.start(name, task);
    }
    fn lane(&self, _name: &'static str) -> Arc<dyn Lane> {
        self.jobs.clone()
    }
    fn offload(&self, job: Job) {
        self.reads.run(job);
    }
    fn fill(&self, buffer: &mut [u8]) {
        self.inner.fill(buffer);
    }
}

fn open(storage: Arc<dyn Storage>, runtime: Arc<dyn Runtime>) -> Database {
    storage
        .open_tables(&[ROWS.info, OTHER.info])
        .expect("tables");
    Database::open(storage, runtime).expect("open")
}

async fn write(database: Database, priority: Priority, key: u64) -> Result<(), StorageError> {
    database
        .write_queued(priority, Durability::Ordered, move |txn| {
            txn.put(ROWS, &key, &Raw(Vec::new()))
        })
        .await
}

fn has(database: &Database, key: u64) -> bool {
    let row = database.read(|snapshot| snapshot.row(ROWS, &key));
    let row: Result<Option<Raw>, StorageError> = row;
    row.expect("read").is_some()
}

/// Starts `count` writes of one priority that note the letter when they run.
fn start_writes(
    runtime: &Stalled,
    database: &Database,
    priority: Priority,
    count: usize,
    order: &Arc<Mutex<String>>,
) {
    for _ in 0..count {
        let (database, order) = (database.clone(), order.clone());
        runtime.inner.spawn("write", async move {
            let note = move |_: &mut WriteTxn<'_>| {
                order.lock().push(match priority {
                    Priority::Foreground => 'F',
                    Priority::Background => 'b',
                });
                Ok::<_, StorageError>(())
            };
            let done = database.write_queued(priority, Durability::Ordered, note);
            done.await.expect("write");
        });
    }
}

/// Lets every task run as far as it gets without time passing.
async fn settle() {
    for _ in 0..100 {
        let mut has_yielded = false;
        let all_others_run = poll_fn(|context| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        all_others_run.await;
    }
}

/// Foreground goes first, and background still gets every ninth turn.
#[test]
fn foreground_first_and_background_not_starved() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let order = Arc::<Mutex<String>>::default();
    let noted = order.clone();
    let main = runtime.clone();
    runtime.inner.run(async move {
        start_writes(&main, &database, Priority::Background, 4, &order);
        start_writes(&main, &database, Priority::Foreground, 20, &order);
        settle().await;
        while main.jobs.len() > 0 {
            main.jobs.run_one();
        }
        settle().await;
    });
    assert_eq!(*noted.lock(), "FFFFFFFFbFFFFFFFFbFFFFbb");
}

/// Each queue holds 256 jobs; the next one waits for a place and is not lost.
#[test]
fn queues_are_bounded() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let order = Arc::<Mutex<String>>::default();
    let noted = order.clone();
    let main = runtime.clone();
    runtime.inner.run(async move {
        start_writes(&main, &database, Priority::Background, 300, &order);
        settle().await;
        assert_eq!(main.jobs.len(), 256);
        start_writes(&main, &database, Priority::Foreground, 300, &order);
        settle().await;
        assert_eq!(main.jobs.len(), 2 * 256, "each queue has its own places");
        while main.jobs.len() > 0 {
            main.jobs.run_one();
            settle().await;
        }
    });
    assert_eq!(noted.lock().len(), 600);
    assert!(noted.lock().starts_with('F'));
}

/// A closure that did not start in time is withdrawn, and never runs.
#[test]
fn a_late_closure_is_withdrawn() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let (main, task) = (runtime.clone(), database.clone());
    let (outcome, waited) = runtime.inner.run(async move {
        let start = main.monotonic();
        let outcome = write(task, Priority::Foreground, 1).await;
        (outcome, main.monotonic() - start)
    });
    let waited_ms = WRITER_PATIENCE.as_millis() as u64;
    assert_eq!(outcome, Err(StorageError::Busy { waited_ms }));
    assert_eq!(waited, WRITER_PATIENCE);
    runtime.jobs.run_one();
    assert!(!has(&database, 1));
}

/// A caller that goes away before its turn takes its closure along.
#[test]
fn a_dropped_caller_withdraws() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let mut caller = Box::pin(write(database.clone(), Priority::Background, 1));
    assert!((&mut caller).now_or_never().is_none());
    drop(caller);
    runtime.jobs.run_one();
    assert!(!has(&database, 1));
}

/// What waits in a queue is refused when the database closes.
#[test]
fn close_refuses_what_is_queued() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let mut caller = Box::pin(write(database.clone(), Priority::Background, 1));
    assert!((&mut caller).now_or_never().is_none());
    database.close().expect("close");
    assert_eq!(caller.now_or_never(), Some(Err(StorageError::Closed)));
    let late = write(database.clone(), Priority::Background, 1).now_or_never();
    assert_eq!(late, Some(Err(StorageError::Closed)));
    runtime.jobs.run_one();
}

/// A caller that goes away after its closure started does not undo the commit, and those who
/// wait for it are woken.
///
/// covers: STR-077, STR-078
#[tokio::test]
async fn a_commit_is_published_without_its_caller() {
    let database = open(MemoryStorage::new(), NativeRuntime::current());
    let mut changes = database.changes();
    let (started, has_started) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let writer = database.clone();
    let caller = tokio::spawn(async move {
        let write = move |txn: &mut WriteTxn<'_>| {
            started.send(()).expect("the test waits");
            released.recv().expect("released");
            txn.put(ROWS, &1, &Raw(Vec::new()))
        };
        writer
            .write_queued(Priority::Foreground, Durability::Ordered, write)
            .await
    });
    has_started.await.expect("the closure starts");
    caller.abort();
    assert!(caller.await.expect_err("aborted").is_cancelled());
    release.send(()).expect("the closure waits");
    let commit = changes.changed(Domain::Messages.bit()).await.expect("open");
    assert_eq!(commit.revision, changes.revision());
    assert!(has(&database, 1));
}

/// Closing waits for the closure that runs, and keeps its commit.
#[tokio::test]
async fn close_waits_for_what_runs() {
    let disk = MemoryDisk::new();
    let database = open(disk.open(), NativeRuntime::current());
    let (started, has_started) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (writer, nested) = (database.clone(), database.clone());
    let caller = tokio::spawn(async move {
        let write = move |txn: &mut WriteTxn<'_>| {
            started.send(()).expect("the test waits");
            released.recv().expect("released");
            // Nothing new begins, and it is told so instead of waiting for the end.
            let late = nested.read::<_, StorageError>(|_| Ok(()));
            assert_eq!(late, Err(StorageError::Closed));
            txn.put(ROWS, &1, &Raw(Vec::new()))
        };
        writer
            .write_queued(Priority::Foreground, Durability::Ordered, write)
            .await
    });
    has_started.await.expect("the closure starts");
    let (mut changes, engine) = (database.changes(), database.storage().clone());
    let closing = tokio::task::spawn_blocking(move || database.close());
    // The end is told before the wait for the closure.
    changes.changed(u64::MAX).await.expect_err("closing");
    for _ in 0..1_000 {
        assert!(engine.version().is_ok() && !closing.is_finished());
        tokio::task::yield_now().await;
    }
    release.send(()).expect("the closure waits");
    closing.await.expect("join").expect("close");
    assert_eq!(caller.await.expect("join"), Ok(()));
    assert!(has(&open(disk.open(), NativeRuntime::current()), 1));
}

/// A panic of a queued closure continues in its caller, and the queue goes on.
#[tokio::test]
async fn a_panic_continues_in_the_caller() {
    let database = open(MemoryStorage::new(), NativeRuntime::current());
    let write_panics = database.write_queued::<(), StorageError>(
        Priority::Foreground,
        Durability::Ordered,
        |txn| {
            txn.put(ROWS, &1, &Raw(Vec::new()))?;
            panic!("inside")
        },
    );
    let panic = AssertUnwindSafe(write_panics).catch_unwind().await;
    let panic = panic.expect_err("panicked");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    let read_panics = database.read_queued::<(), StorageError>(|_| panic!("reading"));
    assert!(AssertUnwindSafe(read_panics).catch_unwind().await.is_err());
    write(database.clone(), Priority::Foreground, 2)
        .await
        .expect("the next write");
    let found = database.read_queued::<_, StorageError>(|snapshot| {
        Ok((
            snapshot.row(ROWS, &1)?.is_some(),
            snapshot.row(ROWS, &2)?.is_some(),
        ))
    });
    assert_eq!(found.await, Ok((false, true)));
}

/// Queued reads run side by side, but never more than eight at once; none is lost.
#[test]
fn queued_reads_are_bounded() {
    let runtime = Stalled::new();
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let done = Arc::new(AtomicUsize::new(0));
    let (main, count) = (runtime.clone(), done.clone());
    runtime.inner.run(async move {
        for _ in 0..40 {
            let (database, count) = (database.clone(), count.clone());
            main.inner.spawn("read", async move {
                let read = |snapshot: &dyn Snapshot| snapshot.row(ROWS, &1).map(drop);
                let outcome: Result<(), StorageError> = database.read_queued(read).await;
                outcome.expect("read");
                count.fetch_add(1, Ordering::SeqCst);
            });
        }
        settle().await;
        assert_eq!(main.reads.len(), 8);
        while main.reads.len() > 0 {
            main.reads.run_one();
            settle().await;
            assert!(main.reads.len() <= 8);
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 40);
}

fn put<V: Into<u64>>(database: &Database, table: Table<u64, Raw>, key: V) {
    let key = key.into();
    let put = database.write(Durability::Ordered, |txn| {
        txn.put(table, &key, &Raw(Vec::new()))
    });
    let put: Result<(), StorageError> = put;
    put.expect("write");
}

/// A waiter is woken by its domains alone, and told of every domain since.
#[test]
fn wakes_follow_domains() {
    let runtime = SimulatedRuntime::new(1);
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let mut messages = database.changes();
    put(&database, OTHER, 1u64);
    let waiting = messages.changed(Domain::Messages.bit()).now_or_never();
    assert!(waiting.is_none());
    put(&database, ROWS, 1u64);
    let told = messages.changed(Domain::Messages.bit()).now_or_never();
    let told = told.expect("woken").expect("open");
    let both = Domain::Messages.bit() | Domain::Groups.bit();
    assert_eq!((told.revision, told.domains), (messages.revision(), both));
    assert!(
        messages.changed(u64::MAX).now_or_never().is_none(),
        "told once"
    );
}

/// A commit of another process is found by the next poll, with no wake and no network.
///
/// covers: STR-078
#[test]
fn polling_finds_other_processes() {
    let disk = MemoryDisk::new();
    let runtime = SimulatedRuntime::new(1);
    let here = open(disk.open(), Arc::new(runtime.clone()));
    let there = open(disk.open(), Arc::new(runtime.clone()));
    let clock = runtime.clock();
    runtime.run(async move {
        let mut changes = here.changes();
        // The other open committed after this one.
        let first = changes.changed_or_poll(u64::MAX).await.expect("open");
        assert!(first.is_some());
        for round in 0..20u64 {
            let table = if round % 2 == 0 { ROWS } else { OTHER };
            put(&there, table, round);
            let start = clock.now();
            let domains = Domain::Messages.bit();
            let told = changes.changed_or_poll(domains).await.expect("open");
            assert!(clock.now() - start <= ACTIVE_DATABASE_POLL_INTERVAL);
            assert_eq!(told.is_some(), round % 2 == 0, "round {round}");
        }
        // Two commits between two looks: only the last one's domains are stored.
        put(&there, ROWS, 1u64);
        put(&there, OTHER, 1u64);
        let told = changes.changed_or_poll(Domain::Messages.bit()).await;
        assert!(told.expect("open").is_some(), "a gap wakes everyone");
        // The same when an own commit hides the gap.
        put(&there, ROWS, 1u64);
        put(&here, OTHER, 1u64);
        let told = changes.changed(Domain::Messages.bit()).now_or_never();
        assert!(told.is_some(), "a gap wakes everyone");
    });
}

/// With nothing to tell, the wait ends after the poll interval, and starts over each time.
///
/// covers: STR-078, STR-079
#[test]
fn polling_is_bounded_by_its_interval() {
    let runtime = SimulatedRuntime::new(1);
    let database = open(MemoryStorage::new(), Arc::new(runtime.clone()));
    let clock = runtime.clock();
    runtime.run(async move {
        let mut changes = database.changes();
        for round in 1..=5 {
            let told = changes.changed_or_poll(u64::MAX).await;
            assert_eq!(told, Ok(None));
            assert_eq!(clock.now(), ACTIVE_DATABASE_POLL_INTERVAL * round);
        }
    });
}

/// The end is told once and for all: no later commit opens it again.
#[test]
fn the_end_is_final() {
    let runtime = SimulatedRuntime::new(1);
    let disk = MemoryDisk::new();
    let database = open(disk.open(), Arc::new(runtime.clone()));
    let woken = Arc::new(AtomicBool::new(false));
    let (flag, waiting) = (woken.clone(), database.clone());
    runtime.spawn("waits", async move {
        let mut changes = waiting.changes();
        changes.changed(u64::MAX).await.expect_err("closed");
        changes.changed_or_poll(u64::MAX).await.expect_err("closed");
        flag.store(true, Ordering::SeqCst);
    });
    let main = runtime.clone();
    runtime.run(async move {
        settle().await;
        database.close().expect("close");
        put(&open(disk.open(), Arc::new(main.clone())), ROWS, 1u64);
        settle().await;
        assert!(
            database
                .changes()
                .changed(u64::MAX)
                .now_or_never()
                .expect("told")
                .is_err()
        );
    });
    assert!(woken.load(Ordering::SeqCst));
}
