//! Who may call: what stands in front of every path that is not public.
//!
//! A request shows a bearer token. It is taken if it is an API key of the configuration; if not,
//! it must be a JSON Web Token that a known key signed and that says what the configuration asks
//! for. A request is judged by what is in memory: nothing is fetched for it. Keys that come from
//! an address are loaded before the server serves, and fetched again at a fixed pace; when that
//! has failed for too long, the server ends instead of taking tokens by keys that may have been
//! withdrawn. A stream is judged when it opens and not again.
//!
//! Nothing here shows a token, a key or an address, in an error, a log or a debug print.

mod algorithm;
mod api_keys;
mod bearer;
mod exempt;
mod jwks;
mod key;
mod key_set;
mod refresh;
mod rejection;
mod rules;
mod token;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::request::Parts;
use tonic::Status;
use xmtp_proto::backend::v1::auth_configuration::SigningKey;

use crate::config::{Auth, ConfigError, InlineKey, JwksSettings, KeySource, Secret};
use crate::edge::{Gate, RequestId};
use crate::hooks::Clock;
use crate::telemetry::metrics;

use self::api_keys::ApiKeys;
use self::jwks::Source;
use self::key::Key;
use self::key_set::KeySet;
use self::refresh::{Keys, Pace};
use self::rules::Rules;

pub use self::jwks::KeySetFailure;
pub use self::key_set::KeySetError;

pub(crate) use self::refresh::Refresher;
pub(crate) use self::rejection::Rejection;

const NANOSECONDS: f64 = 1e9;

/// What the section `[auth]` comes to when the server starts.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Judges the requests.
    pub(crate) authenticator: Authenticator,
    /// What clients are told of the keys that were loaded; it never changes (CFG-027).
    pub(crate) loaded: Vec<SigningKey>,
    /// Keeps the keys fresh, if they come from an address.
    pub(crate) refresher: Option<Refresher>,
}

impl Opened {
    /// Takes apart what serves from what keeps it fresh.
    pub(crate) fn into_parts(self) -> (Option<Authenticator>, Option<Refresher>) {
        (Some(self.authenticator), self.refresher)
    }
}

/// Reports why authentication could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Keys(#[from] KeySetFailure),
}

/// Loads the keys; when this returns, requests can be judged.
pub(crate) async fn open(
    auth: &Auth,
    identifier: &str,
    clock: Arc<dyn Clock>,
) -> Result<Opened, OpenError> {
    let (keys, refresher) = match &auth.keys {
        KeySource::None => (Keys::default(), None),
        KeySource::Inline(keys) => (Keys::new(inline(keys)?), None),
        KeySource::Jwks(settings) => {
            let (keys, refresher) = load(settings, clock.clone()).await?;
            (keys, Some(refresher))
        }
    };
    let loaded = keys.current().published();
    let authenticator = Authenticator {
        api_keys: ApiKeys::new(auth.api_keys.values().map(Secret::expose)),
        rules: Rules::new(auth),
        keys,
        clock,
        identifier: identifier.to_owned(),
    };
    Ok(Opened {
        authenticator,
        loaded,
        refresher,
    })
}

/// Checks the keys of a configuration, as a server does that starts with them.
pub(crate) fn check_keys(keys: &[InlineKey]) -> Result<(), ConfigError> {
    inline(keys).map(drop)
}

fn inline(keys: &[InlineKey]) -> Result<KeySet, ConfigError> {
    let field = "auth.keys.public_key";
    let read = |key: &InlineKey| {
        Key::from_pem(&key.kid, key.alg, &key.public_key)
            .ok_or_else(|| ConfigError::new(field, "must be a public key of its algorithm, as PEM"))
    };
    let keys = keys.iter().map(read).collect::<Result<_, _>>()?;
    KeySet::new(keys).map_err(|error| ConfigError::new("auth.keys", error.to_string()))
}

async fn load(
    settings: &JwksSettings,
    clock: Arc<dyn Clock>,
) -> Result<(Keys, Refresher), KeySetFailure> {
    let source = Source::new(&settings.url, clock.clone())?;
    let fetched = source.first().await?;
    let pace = Pace {
        refresh: Duration::from_secs(settings.refresh_seconds.into()),
        max_stale: Duration::from_secs(settings.max_stale_seconds.into()),
    };
    let keys = Keys::new(fetched.keys);
    let refresher = Refresher::start(source, keys.clone(), pace, clock, fetched.began_ns);
    Ok((keys, refresher))
}

/// Judges requests.
#[derive(Debug)]
pub(crate) struct Authenticator {
    api_keys: ApiKeys,
    rules: Rules,
    keys: Keys,
    clock: Arc<dyn Clock>,
    identifier: String,
}

impl Authenticator {
    /// Takes a request or says why not; knows its path and its headers.
    fn admit(&self, path: &str, headers: &HeaderMap) -> Result<(), Rejection> {
        if exempt::is_public(path) {
            return Ok(());
        }
        let token = bearer::token(headers)?;
        if self.api_keys.contains(token) {
            return Ok(());
        }
        let now = self.clock.now_ns() as f64 / NANOSECONDS;
        self.rules.check(token, &self.keys.current(), now)
    }
}

impl Gate for Authenticator {
    fn check(&self, head: &Parts) -> Result<(), Status> {
        let admitted = self.admit(head.uri.path(), &head.headers);
        admitted.map_err(|rejection| {
            let request_id = head.extensions.get::<RequestId>().map(ToString::to_string);
            let (identifier, reason) = (self.identifier.as_str(), rejection.name());
            tracing::info!(request_id, identifier, reason, "a request was turned away");
            metrics::auth_rejected(reason);
            rejection.status()
        })
    }
}

/// Judges the headers of a request as if every signature held.
#[cfg(feature = "testing")]
pub(crate) fn judge_unsigned(auth: &Auth, headers: &HeaderMap, now: f64) -> Result<(), Rejection> {
    let token = token::Token::parse(bearer::token(headers)?)?;
    Rules::new(auth).check_claims(&token, now)
}

/// Reads a key set and counts its keys.
#[cfg(feature = "testing")]
pub(crate) fn count_keys(answer: &[u8]) -> Result<usize, KeySetError> {
    KeySet::from_json(answer).map(|keys| keys.published().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SigningAlgorithm;
    use crate::hooks::SystemClock;

    /// The example of RFC 8410.
    const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
        -----END PUBLIC KEY-----\n";

    const API_KEY: &str = "an-api-key-that-nobody-may-see-1";

    fn section(public_key: &str) -> Auth {
        Auth {
            keys: KeySource::Inline(vec![InlineKey {
                kid: "the-kid".into(),
                alg: SigningAlgorithm::EdDsa,
                public_key: public_key.into(),
            }]),
            api_keys: [("monitor".into(), Secret::new(API_KEY))].into(),
            audiences: Vec::new(),
            issuers: Vec::new(),
            required_scopes: Vec::new(),
            leeway_seconds: 0,
        }
    }

    /// covers: CFG-092
    #[tokio::test]
    async fn no_debug_print_shows_a_key() {
        let clock = Arc::new(SystemClock);
        let opened = open(&section(PUBLIC_KEY), "id", clock.clone())
            .await
            .unwrap();
        let keys = opened.authenticator.keys.current();
        let key = keys
            .choose(Some("the-kid"), SigningAlgorithm::EdDsa)
            .unwrap();
        let shown = format!("{:?} {keys:?} {key:?}", opened.authenticator);
        for hidden in [
            "GbECWmEzf6F",
            "25, 191, 68",
            "19bf44",
            "an-api-key",
            "the-kid",
        ] {
            assert!(!shown.contains(hidden), "{shown}");
        }
        let broken = PUBLIC_KEY.replace("MCow", "AAAA");
        let error = open(&section(&broken), "id", clock).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("auth.keys.public_key"), "{shown}");
        assert!(
            !shown.contains("AyEAGb9E") && !shown.contains("an-api-key"),
            "{shown}"
        );
    }
}
