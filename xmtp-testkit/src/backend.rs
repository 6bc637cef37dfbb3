//! The real backend inside the test's process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use xmtp_backend::config::Database;
use xmtp_backend::{Backend, Config, Running, Services};

use crate::InProcessTransport;

/// The identifier of every test backend.
pub const IDENTIFIER: &str = "org.example.test";

/// The file of the database.
const FILE: &str = "backend.db";

/// How long a stop waits for open requests.
const MAX_DRAIN_DURATION: Duration = Duration::from_secs(2);

/// A backend on a free loopback port, on SQLite in a folder of its own.
///
/// # Behavior
/// - Its address and what it stores stay the same over [`stop`](Self::stop) and
///   [`restart`](Self::restart).
/// - Dropping it stops it without waiting, and deletes what it stored.
/// - What can not be done fails the test: nothing here returns an error.
#[derive(Debug)]
pub struct TestBackend {
    // Before the folder, so that the database is let go first.
    running: Option<Running>,
    config: Config,
    address: SocketAddr,
    folder: TempDir,
}

impl TestBackend {
    /// Starts a backend with default settings.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a backend whose settings were changed by `change`.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the backend");
        let mut config = Config::ephemeral(IDENTIFIER);
        config.database = Database::Sqlite(folder.path().join(FILE));
        config.server.max_drain_duration = MAX_DRAIN_DURATION;
        change(&mut config);
        let running = Backend::start(config.clone())
            .await
            .expect("the backend starts");
        let address = running.address();
        config.server.listen = address;
        Self {
            running: Some(running),
            config,
            address,
            folder,
        }
    }

    /// Returns where clients connect, also while it is stopped.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns its settings; those that are changed here hold from the next start on.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Returns the calls of the running backend.
    pub fn services(&self) -> Services {
        self.running.as_ref().expect("the backend runs").services()
    }

    /// Returns a transport to the running backend that needs no socket. It does not survive a stop.
    pub fn in_process(&self) -> InProcessTransport {
        InProcessTransport::new(self.services())
    }

    /// Stops it, and returns a copy of what it stored, for [`put_back`](Self::put_back).
    pub async fn back_up(&mut self) -> PathBuf {
        self.stop().await;
        let copy = self.folder.path().join("copy.db");
        std::fs::copy(self.path(), &copy).expect("a copy of the database");
        self.restart().await;
        copy
    }

    /// Stops it, puts a copy in the place of what it stored, fences it as an operator has to, and
    /// starts it at the same address.
    pub async fn put_back(&mut self, copy: &Path) {
        self.stop().await;
        let path = self.path();
        std::fs::copy(copy, &path).expect("the copy is put back");
        for suffix in ["-wal", "-shm"] {
            let mut beside = path.clone().into_os_string();
            beside.push(suffix);
            let _ = std::fs::remove_file(beside);
        }
        let refused = Backend::start(self.config.clone()).await;
        assert!(refused.is_err(), "a database that was put back is served");
        Backend::fence(&self.config).await.expect("a fence");
        self.restart().await;
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    /// Stops it as an operator does; does nothing when it is stopped.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Stops it if it runs, and starts it at the same address with what it stored.
    pub async fn restart(&mut self) {
        self.stop().await;
        let running = Backend::start(self.config.clone()).await;
        self.running = Some(running.expect("the backend starts again"));
    }
}
