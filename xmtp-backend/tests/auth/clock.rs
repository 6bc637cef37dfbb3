//! A clock that only the test moves, so that nothing is waited for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::timeout;
use xmtp_backend::hooks::Clock;

use crate::common::PATIENCE;

/// When every test begins, in seconds since 1970.
const BEGINNING: u64 = 1_700_000_000;

#[derive(Debug)]
pub(crate) struct TestClock {
    now: watch::Sender<Duration>,
    /// Every wait that was ever begun.
    waits: watch::Sender<Vec<Duration>>,
}

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            now: watch::Sender::new(Duration::from_secs(BEGINNING)),
            waits: watch::Sender::default(),
        })
    }

    /// Returns the time in seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        self.now.borrow().as_secs()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now += by);
    }

    /// Returns the waits that were begun so far.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.waits.borrow().clone()
    }

    /// Comes back when the server has begun so many waits of a kind.
    pub(crate) async fn begun(&self, count: usize, is_meant: impl Fn(Duration) -> bool) {
        let mut waits = self.waits.subscribe();
        let are_begun =
            |waits: &Vec<Duration>| waits.iter().filter(|wait| is_meant(**wait)).count() >= count;
        let waited = timeout(PATIENCE, waits.wait_for(are_begun)).await;
        waited
            .expect("it waits in time")
            .expect("the clock is there");
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.now.borrow().as_nanos()).expect("a time")
    }

    async fn wait(&self, time: Duration) {
        let mut now = self.now.subscribe();
        let end = *now.borrow() + time;
        self.waits.send_modify(|waits| waits.push(time));
        now.wait_for(|now| *now >= end)
            .await
            .expect("the clock is there");
    }
}
