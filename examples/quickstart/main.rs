//! Two people talk over MLS through an embedded backend, on two storage engines; one of them is
//! killed between hand-off and acknowledgement, and nothing is lost.
//!
//! The program plays Alice on encrypted SQLite and starts itself again as Bo, on sled, in a child
//! process. It checks every line of its story, and exits non-zero when one is not as told.

// An example tells its story on standard output.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod alice;
mod bo;
mod story;

use std::process::ExitCode;

/// What a step of the story may fail with.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.split_first() {
        Some((role, rest)) if role == "bo" => bo::run(rest).await,
        _ => alice::run().await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the story went wrong: {error}");
            ExitCode::FAILURE
        }
    }
}
