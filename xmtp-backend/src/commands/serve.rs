//! `xmtp-backend --config FILE`: serves until a signal or a failure ends it.

use std::path::Path;

use tokio::signal::unix::{SignalKind, signal};
use xmtp_backend::{Backend, Config, Telemetry};

pub(super) fn run(path: &Path) -> Result<(), String> {
    let config = Config::load(path).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no runtime: {}", error.kind()))?;
    runtime.block_on(told(config))
}

/// Serves, and tells of it to the end.
async fn told(config: Config) -> Result<(), String> {
    let telemetry = Telemetry::install(&config).map_err(|error| error.to_string())?;
    let ended = serve(config).await;
    telemetry.flush().await;
    ended
}

async fn serve(config: Config) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("no signals: {}", error.kind()));
    let (mut terminate, mut interrupt) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    );
    let started = tokio::select! {
        started = Backend::start(config) => started,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let mut running = started.map_err(|error| error.to_string())?;
    let ended = tokio::select! {
        ended = running.wait() => Err(ended.to_string()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    running.stop().await;
    ended
}
