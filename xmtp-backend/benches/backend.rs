//! How near the server comes to what limits it.
//!
//! A figure is a ratio: the rate of ours over the rate of the bare thing underneath, measured in
//! turn on one machine. One JSON line per figure goes to the standard output. Where the limit is a
//! bound and not a rate, it is the bound.
//!
//! ```sh
//! cargo bench --bench backend            # everything
//! cargo bench --bench backend publish    # measures whose name begins so
//! ```
//!
//! `XMTP_ROUNDS` multiplies the work of each run.

// The bench is a program: what it finds goes to the standard output.
#![allow(clippy::print_stdout)]

#[path = "backend/applied.rs"]
mod applied;
#[path = "backend/bare.rs"]
mod bare;
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/crowd/mod.rs"]
mod crowd;
#[path = "backend/fan_out.rs"]
mod fan_out;
#[path = "../tests/common/history/mod.rs"]
mod history;
#[path = "backend/idle.rs"]
mod idle;
#[path = "backend/publish.rs"]
mod publish;
#[path = "backend/query.rs"]
mod query;
#[path = "backend/report.rs"]
mod report;
#[path = "backend/rows.rs"]
mod rows;
#[path = "backend/store.rs"]
mod store;
#[path = "backend/streams.rs"]
mod streams;

use report::Report;
use store::Store;

fn main() {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.starts_with(part));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let report = Report::new();
    runtime.block_on(async {
        for store in Store::all() {
            measure_store(&report, &store, &wanted).await;
        }
        if wanted("idle_stream") || wanted("reconnect") {
            idle::measure(&report).await;
        }
    });
}

async fn measure_store(report: &Report, store: &Store, wanted: &dyn Fn(&str) -> bool) {
    if wanted("publish") {
        for connections in publish::CONNECTIONS {
            publish::measure(report, store, connections).await;
        }
    }
    if wanted("query") {
        query::measure(report, store).await;
    }
    if wanted("fan_out") {
        fan_out::measure(report, store).await;
    }
    if wanted("latency") {
        streams::latency(report, store).await;
    }
    if wanted("applied") {
        for topics in applied::TOPICS {
            applied::measure(report, store, topics).await;
        }
    }
}
