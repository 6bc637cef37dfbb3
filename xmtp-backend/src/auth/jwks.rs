//! Fetches the key set.

use std::fmt;
use std::sync::Arc;

use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use super::key_set::{KeySet, KeySetError};
use crate::config::{Secret, check_address};
use crate::hooks::Clock;
use crate::limits::{
    KEY_SET_BYTES, KEY_SET_FETCH_TIME, KEY_SET_FIRST_ATTEMPTS, KEY_SET_FIRST_PAUSE,
};
use crate::telemetry::metrics;

/// Reports why a key set could not be had.
///
/// - Never shows the address, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetFailure {
    /// The address is not one that keys may come from.
    #[error("the address must be https, or http on the loopback interface")]
    Address,
    /// No client could be made, for example because the machine trusts no certificates.
    #[error("no connection can be secured, see that the machine has its root certificates")]
    NoClient,
    /// The server could not be reached, or broke off.
    #[error("the server can not be reached, or broke off")]
    Unreachable,
    /// The answer took too long.
    #[error("the answer took more than 10 seconds")]
    TimedOut,
    /// The server answered something else; redirects are not followed.
    #[error("the server answered with status {0}, it must be 200 without redirects")]
    Status(u16),
    /// The answer is too large.
    #[error("the answer is larger than 256 KiB")]
    TooLarge,
    /// The answer is refused.
    #[error(transparent)]
    Refused(#[from] KeySetError),
}

/// What a fetch brought.
pub(super) struct Fetched {
    pub(super) keys: KeySet,
    /// When the fetch began, in nanoseconds since 1970: the keys are at least this fresh.
    pub(super) began_ns: u64,
}

/// Where keys come from.
pub(super) struct Source {
    address: Url,
    client: Client,
    clock: Arc<dyn Clock>,
}

impl Source {
    pub(super) fn new(address: &Secret, clock: Arc<dyn Clock>) -> Result<Self, KeySetFailure> {
        check_address(address.expose()).map_err(|_| KeySetFailure::Address)?;
        let address = Url::parse(address.expose()).map_err(|_| KeySetFailure::Address)?;
        let builder = Client::builder()
            .redirect(Policy::none())
            .referer(false)
            // A fetch every few minutes has nothing to keep a connection for.
            .pool_max_idle_per_host(0);
        // What is plain text must not leave the machine by way of a proxy.
        let builder = match address.scheme() {
            "http" => builder.no_proxy(),
            _ => builder.https_only(true),
        };
        let client = builder.build().map_err(|_| KeySetFailure::NoClient)?;
        Ok(Self {
            address,
            client,
            clock,
        })
    }

    /// Fetches the key set that the server starts with.
    pub(super) async fn first(&self) -> Result<Fetched, KeySetFailure> {
        let mut attempt = 1;
        loop {
            let failure = match self.fetch().await {
                Ok(fetched) => return Ok(fetched),
                Err(failure) => failure,
            };
            tracing::warn!(attempt, %failure, "the key set could not be loaded");
            if attempt == KEY_SET_FIRST_ATTEMPTS {
                return Err(failure);
            }
            attempt += 1;
            self.clock.wait(KEY_SET_FIRST_PAUSE).await;
        }
    }

    /// Fetches the key set once.
    pub(super) async fn fetch(&self) -> Result<Fetched, KeySetFailure> {
        let fetched = self.try_fetch().await;
        metrics::auth_refreshed(if fetched.is_ok() { "ok" } else { "failed" });
        fetched
    }

    async fn try_fetch(&self) -> Result<Fetched, KeySetFailure> {
        let began_ns = self.clock.now_ns();
        let answer = tokio::select! {
            answer = self.answer() => answer?,
            () = self.clock.wait(KEY_SET_FETCH_TIME) => return Err(KeySetFailure::TimedOut),
        };
        let keys = KeySet::from_json(&answer)?;
        Ok(Fetched { keys, began_ns })
    }

    /// Reads the answer, and no more of it than it may have.
    async fn answer(&self) -> Result<Vec<u8>, KeySetFailure> {
        let request = self.client.get(self.address.clone());
        let unreachable = |_: reqwest::Error| KeySetFailure::Unreachable;
        let mut response = request.send().await.map_err(unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(KeySetFailure::Status(response.status().as_u16()));
        }
        let mut answer = Vec::new();
        while let Some(part) = response.chunk().await.map_err(unreachable)? {
            if answer.len() + part.len() > KEY_SET_BYTES {
                return Err(KeySetFailure::TooLarge);
            }
            answer.extend_from_slice(&part);
        }
        Ok(answer)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::SystemClock;

    #[test]
    fn nothing_of_the_address_is_shown() {
        let address = Secret::new("https://user:secret@example.org/keys?secret");
        let source = Source::new(&address, Arc::new(SystemClock)).unwrap();
        assert_eq!(format!("{source:?}"), "Source");
        let bad = Secret::new("http://user:secret@example.org/keys?secret");
        let failure = Source::new(&bad, Arc::new(SystemClock)).unwrap_err();
        assert!(!format!("{failure} {failure:?}").contains("secret"));
    }
}
