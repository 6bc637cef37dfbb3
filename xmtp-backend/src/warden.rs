//! Ends the service when the server can not go on, whether or not anybody waits for that.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::auth::Refresher;
use crate::server::Ended;
use crate::services::{Health, Services};
use crate::telemetry::metrics;

/// What is told that nobody is served any more.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) services: Services,
    pub(crate) health: Health,
}

impl Refusal {
    /// Refuses new calls and ends the streams.
    pub(crate) fn refuse(&self) {
        self.health.refuse();
        metrics::backend_ready(false);
        self.services.shut_down();
    }
}

/// Watches what the service rests on, and ends it.
///
/// - Dropping it ends the watch and not the service.
#[derive(Debug)]
pub(crate) struct Warden {
    task: JoinHandle<()>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Warden {
    /// Begins to watch; `keys` keeps the keys of bearer tokens fresh.
    pub(crate) fn start(refusal: Refusal, keys: Option<Refresher>) -> Self {
        let (told, ended) = watch::channel(None);
        let task = tokio::spawn(async move {
            let stale = async {
                match &keys {
                    Some(keys) => keys.stale().await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                () = refusal.services.failed() => Ended::StoreFailed,
                () = stale => Ended::KeysTooOld,
            };
            refusal.refuse();
            told.send_replace(Some(ended));
        });
        Self { task, ended }
    }

    /// Waits until the service has ended; for ever if it never does.
    pub(crate) async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ended)) => *ended,
            // Only a task that was stopped says nothing, and then nobody serves any more.
            _ => std::future::pending().await,
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.task.abort();
    }
}
