//! What all streams together hold for themselves alone, and who must give it up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::session::Tick;

/// Counts the fetched bytes that wait for the transports of all streams.
///
/// - A stream that holds nothing has no entry.
/// - While more is held than the bound, the streams that hold most for longest are called in, as
///   many as it takes; each ends and gives up all it holds.
#[derive(Debug)]
pub(super) struct Ledger {
    bound: usize,
    numbers: AtomicU64,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    held: usize,
    /// The part of it that streams hold which were called in.
    called_in: usize,
    entries: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    bytes: usize,
    since: Tick,
    called_in: bool,
    bell: Arc<Notify>,
}

/// One stream's account; dropping it gives up what it holds.
#[derive(Debug)]
pub(super) struct Account {
    ledger: Arc<Ledger>,
    number: u64,
    /// What the book says, in bytes.
    told: AtomicU64,
    bell: Arc<Notify>,
}

impl Ledger {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            numbers: AtomicU64::new(0),
            book: Mutex::default(),
        }
    }

    /// Opens the account of a stream.
    pub(super) fn open(self: &Arc<Self>) -> Account {
        Account {
            ledger: self.clone(),
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            told: AtomicU64::new(0),
            bell: Arc::default(),
        }
    }

    /// Returns what all streams hold, in bytes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.book.lock().held
    }

    fn write(&self, account: &Account, bytes: usize, now: Tick) {
        let mut book = self.book.lock();
        book.write(account, bytes, now);
        while book.held - book.called_in > self.bound {
            if !book.call_in_worst(now) {
                break;
            }
        }
    }
}

impl Book {
    fn write(&mut self, account: &Account, bytes: usize, now: Tick) {
        if bytes == 0 {
            if let Some(entry) = self.entries.remove(&account.number) {
                self.held -= entry.bytes;
                self.called_in -= if entry.called_in { entry.bytes } else { 0 };
            }
            return;
        }
        let entry = self.entries.entry(account.number).or_insert_with(|| Entry {
            bytes: 0,
            since: now,
            called_in: false,
            bell: account.bell.clone(),
        });
        let before = std::mem::replace(&mut entry.bytes, bytes);
        self.held = self.held - before + bytes;
        if entry.called_in {
            self.called_in = self.called_in - before + bytes;
        }
    }

    /// Calls in the stream that holds most for longest: bytes times milliseconds, and one
    /// millisecond at least.
    fn call_in_worst(&mut self, now: Tick) -> bool {
        let weight = |entry: &Entry| {
            let age = now.saturating_sub(entry.since).as_millis();
            (age + 1) * entry.bytes as u128
        };
        let worst = self
            .entries
            .values_mut()
            .filter(|entry| !entry.called_in)
            .max_by_key(|entry| weight(entry));
        let Some(worst) = worst else { return false };
        worst.called_in = true;
        self.called_in += worst.bytes;
        worst.bell.notify_one();
        true
    }
}

impl Account {
    /// Says how much the stream holds now, in bytes.
    ///
    /// - The clock counts from any one moment and is the same for all accounts.
    pub(super) fn settle(&self, bytes: usize, now: Tick) {
        if self.told.swap(bytes as u64, Ordering::Relaxed) != bytes as u64 {
            self.ledger.write(self, bytes, now);
        }
    }

    /// Waits until the stream must give up what it holds.
    pub(super) async fn called_in(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle(0, Tick::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    const fn at(millis: u64) -> Tick {
        Duration::from_millis(millis)
    }

    fn is_called_in(account: &Account) -> bool {
        account.called_in().now_or_never().is_some()
    }

    /// covers: STR-030
    #[test]
    fn the_stream_that_holds_most_for_longest_is_called_in() {
        let ledger = Arc::new(Ledger::new(1_000));
        let [old, large, new] = [0; 3].map(|_| ledger.open());
        old.settle(200, at(0));
        large.settle(700, at(900));
        new.settle(100, at(900));
        assert!(![&old, &large, &new].into_iter().any(is_called_in));
        new.settle(150, at(1_000));
        assert!(
            is_called_in(&old),
            "a fifth of the bytes for ten times as long"
        );
        assert!(!is_called_in(&large) && !is_called_in(&new));
        large.settle(900, at(1_001));
        assert!(
            is_called_in(&large),
            "what is called in does not count again"
        );
        assert!(!is_called_in(&old) && !is_called_in(&new));
    }

    #[test]
    fn what_is_sent_or_dropped_is_no_longer_held() {
        let ledger = Arc::new(Ledger::new(100));
        let (one, other) = (ledger.open(), ledger.open());
        one.settle(100, at(0));
        one.settle(40, at(1));
        other.settle(60, at(1));
        drop(one);
        other.settle(100, at(2));
        assert!(!is_called_in(&other));
        other.settle(0, at(3));
        let book = ledger.book.lock();
        assert_eq!((book.held, book.called_in, book.entries.len()), (0, 0, 0));
    }

    #[test]
    fn an_ended_stream_gives_up_what_it_was_called_in_for() {
        let ledger = Arc::new(Ledger::new(100));
        let (one, other) = (ledger.open(), ledger.open());
        one.settle(150, at(0));
        assert!(is_called_in(&one));
        one.settle(0, at(1));
        other.settle(100, at(2));
        assert!(!is_called_in(&other));
    }
}
