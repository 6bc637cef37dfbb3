//! Runs the server: `xmtp-backend --config FILE`.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use xmtp_backend::{Backend, Config};

const USAGE: &str = "usage: xmtp-backend --config FILE";

fn main() -> ExitCode {
    let config = match arguments() {
        Ok(path) => Config::load(&path).map_err(|error| error.to_string()),
        Err(usage) => Err(usage),
    };
    match config.and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<PathBuf, String> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [flag, path] if flag == "--config" => Ok(path.into()),
        _ => Err(USAGE.to_owned()),
    }
}

/// Tells whoever started the server why it ended; there may be no log yet.
#[allow(clippy::print_stderr)]
fn complain(message: &str) {
    eprintln!("xmtp-backend: {message}");
}

fn run(config: Config) -> Result<(), String> {
    tracing_subscriber::fmt()
        .with_max_level(config.server.log_level)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no runtime: {}", error.kind()))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("no signals: {}", error.kind()));
    let (mut terminate, mut interrupt) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    );
    let mut running = Backend::start(config)
        .await
        .map_err(|error| error.to_string())?;
    let ended = tokio::select! {
        ended = running.wait() => Err(ended.to_string()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    running.stop().await;
    ended
}
