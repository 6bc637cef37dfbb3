//! Mocks of time, tasks and randomness.
#![allow(missing_docs)] // the macro makes an undocumented module for each mocked trait

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mockall::mock;

use crate::runtime::{Job, Lane, Runtime};

mock! {
    /// A mocked runtime; it hands out [`MockLane`].
    #[derive(Debug)]
    pub Runtime {}

    impl Runtime for Runtime {
        fn now_ns(&self) -> u64;
        fn monotonic(&self) -> Duration;
        fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()>;
        fn start(&self, name: &'static str, task: BoxFuture<'static, ()>);
        fn lane(&self, name: &'static str) -> Arc<dyn Lane>;
        fn offload(&self, job: Job);
        fn fill(&self, buffer: &mut [u8]);
    }
}

mock! {
    /// A mocked lane.
    #[derive(Debug)]
    pub Lane {}

    impl Lane for Lane {
        fn run(&self, job: Job);
    }
}
