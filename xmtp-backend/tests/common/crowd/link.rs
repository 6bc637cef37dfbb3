//! A client's connection, over all lives of the server.

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;
use super::server::Life;

/// A way to the server that lasts longer than one server.
pub(crate) struct Link {
    lives: watch::Receiver<Life>,
    /// The life that the channel belongs to, or that was lost.
    life: u64,
    channel: Option<Channel>,
}

impl Link {
    pub(super) fn new(lives: watch::Receiver<Life>) -> Self {
        Self {
            lives,
            life: 0,
            channel: None,
        }
    }

    /// Answers a channel; after a loss it waits for the next life of the server.
    pub(crate) async fn channel(&mut self) -> Channel {
        loop {
            if let Some(channel) = &self.channel {
                return channel.clone();
            }
            let next = self.lives.wait_for(|life| life.number > self.life);
            let next = timeout(PATIENCE, next).await.expect("another life in time");
            let next = next.expect("the server is kept").clone();
            self.life = next.number;
            let endpoint = Endpoint::from_shared(next.endpoint).expect("an endpoint");
            self.channel = endpoint.connect().await.ok();
        }
    }

    /// Gives this life of the server up.
    pub(crate) fn lost(&mut self) {
        self.channel = None;
    }
}
