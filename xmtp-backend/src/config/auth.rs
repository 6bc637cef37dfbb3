//! The section `[auth]`.
//!
//! ```toml
//! [auth]
//! enabled = true                    # required as soon as [auth] is there
//! jwks_url = "https://login.example.org/keys"
//! audiences = ["org.example.chat"]
//! issuers = ["https://login.example.org"]
//! required_scopes = ["chat"]
//! leeway_seconds = 60
//! jwks_refresh_seconds = 300
//! jwks_max_stale_seconds = 3600
//!
//! [[auth.keys]]                     # in place of jwks_url
//! kid = "2026-01"
//! alg = "ES256"
//! public_key = "env:SIGNING_KEY"    # PEM
//!
//! [auth.api_keys]
//! monitor = "env:MONITOR_API_KEY"
//! ```
//!
//! While `enabled` is false nothing else in the section is looked at (CFG-004).

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::resolve;
use super::{ConfigError, Secret, check_address, check_positive, refuse};

/// The most that clocks may differ, in seconds.
const MAX_LEEWAY_SECONDS: u32 = 300;

/// The length of an API key, in bytes.
const API_KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=8192;

/// What a key set may be late by beside its refresh and a tenth of it, in seconds.
const STALE_MARGIN_SECONDS: u64 = 10;

/// The section `[auth]` while it is switched on.
#[derive(Clone, Debug)]
pub struct Auth {
    /// Where the keys of bearer tokens come from.
    pub keys: KeySource,
    /// Callers that need no token, by name.
    pub api_keys: BTreeMap<String, Secret>,
    /// Of these a token must name one; empty for any.
    pub audiences: Vec<String>,
    /// Of these a token must come from one; empty for any.
    pub issuers: Vec<String>,
    /// All of these a token must have.
    pub required_scopes: Vec<String>,
    /// How far clocks may differ, in seconds.
    pub leeway_seconds: u32,
}

/// Where the keys of bearer tokens come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// There are none: only API keys are accepted.
    None,
    /// From the file.
    Inline(Vec<InlineKey>),
    /// From a key set that is fetched.
    Jwks(JwksSettings),
}

/// One key of the file.
#[derive(Clone, Debug)]
pub struct InlineKey {
    /// The name by which a token chooses it.
    pub kid: String,
    /// The one algorithm it is used with.
    pub alg: SigningAlgorithm,
    /// The public key, as PEM.
    pub public_key: String,
}

/// How a key set is fetched.
#[derive(Clone, Debug)]
pub struct JwksSettings {
    /// Where it is; HTTPS, or HTTP on loopback.
    pub url: Secret,
    /// The pause between two fetches, in seconds.
    pub refresh_seconds: u32,
    /// How old the set in use may become, in seconds.
    pub max_stale_seconds: u32,
}

/// The algorithms that a token may be signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum SigningAlgorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "RS384")]
    Rs384,
    #[serde(rename = "RS512")]
    Rs512,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "ES384")]
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl SigningAlgorithm {
    /// Returns the name that tokens and key sets use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// Who may call. Without the section everyone may; configuration and health are open to everyone.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "auth", extend("required" = ["enabled"]))]
pub(super) struct AuthFile {
    /// Whether callers need a credential. While it is false nothing else of the section is looked
    /// at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    enabled: Option<bool>,
    /// The key set that bearer tokens are signed with, over HTTPS, or `env:NAME`. Not together
    /// with `auth.keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    jwks_url: Option<String>,
    /// The keys that bearer tokens are signed with. Not together with `auth.jwks_url`.
    keys: Vec<KeyFile>,
    /// Named keys that callers may send in place of a token: 32 to 8192 visible ASCII characters
    /// each, all different, or `env:NAME`. They need no scope.
    api_keys: BTreeMap<String, String>,
    /// Of these a token must name one. Empty: any.
    audiences: Vec<String>,
    /// Of these a token must come from one. Empty: any.
    issuers: Vec<String>,
    /// All of these a token must have.
    required_scopes: Vec<String>,
    /// How far clocks may differ when a token's times are checked, in seconds.
    #[schemars(range(max = 300))]
    leeway_seconds: u32,
    /// The pause between two fetches of the key set, in seconds; up to a tenth is added.
    #[schemars(range(min = 1))]
    jwks_refresh_seconds: u32,
    /// How old the key set in use may become before the server stops, in seconds. At least
    /// `auth.jwks_refresh_seconds`, a tenth of it, and 10.
    #[schemars(range(min = 1))]
    jwks_max_stale_seconds: u32,
}

/// One key that bearer tokens are signed with.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "key")]
struct KeyFile {
    /// The name by which a token chooses the key.
    #[schemars(length(min = 1))]
    kid: String,
    /// The one algorithm the key is used with.
    alg: SigningAlgorithm,
    /// The public key as PEM, or `env:NAME`.
    public_key: String,
}

impl Default for AuthFile {
    fn default() -> Self {
        Self {
            enabled: None,
            jwks_url: None,
            keys: Vec::new(),
            api_keys: BTreeMap::new(),
            audiences: Vec::new(),
            issuers: Vec::new(),
            required_scopes: Vec::new(),
            leeway_seconds: 60,
            jwks_refresh_seconds: 300,
            jwks_max_stale_seconds: 3600,
        }
    }
}

impl AuthFile {
    /// Reads the section; whoever calls has seen that it is switched on.
    pub(super) fn read(self) -> Result<Auth, ConfigError> {
        let keys = match (self.jwks_url, self.keys) {
            (Some(_), keys) if !keys.is_empty() => {
                let problem = "excludes auth.keys; name one source of keys";
                return Err(ConfigError::new("auth.jwks_url", problem));
            }
            (Some(url), _) => KeySource::Jwks(JwksSettings {
                url: Secret::new(resolve("auth.jwks_url", url)?),
                refresh_seconds: self.jwks_refresh_seconds,
                max_stale_seconds: self.jwks_max_stale_seconds,
            }),
            (None, keys) if keys.is_empty() => KeySource::None,
            (None, keys) => {
                let keys = keys.into_iter().map(KeyFile::read);
                KeySource::Inline(keys.collect::<Result<_, _>>()?)
            }
        };
        let api_keys = self.api_keys.into_iter().map(|(name, value)| {
            let value = resolve(&format!("auth.api_keys.{name}"), value)?;
            Ok((name, Secret::new(value)))
        });
        Ok(Auth {
            keys,
            api_keys: api_keys.collect::<Result<_, ConfigError>>()?,
            audiences: self.audiences,
            issuers: self.issuers,
            required_scopes: self.required_scopes,
            leeway_seconds: self.leeway_seconds,
        })
    }
}

impl KeyFile {
    fn read(self) -> Result<InlineKey, ConfigError> {
        Ok(InlineKey {
            kid: self.kid,
            alg: self.alg,
            public_key: resolve("auth.keys.public_key", self.public_key)?,
        })
    }
}

pub(super) fn check(auth: &Auth) -> Result<(), ConfigError> {
    if matches!(auth.keys, KeySource::None) && auth.api_keys.is_empty() {
        let problem = "needs auth.jwks_url, auth.keys or auth.api_keys";
        return refuse("auth.enabled", problem);
    }
    match &auth.keys {
        KeySource::None => {}
        KeySource::Inline(keys) => check_keys(keys)?,
        KeySource::Jwks(settings) => check_jwks(settings)?,
    }
    check_api_keys(&auth.api_keys)?;
    let lists = [
        ("auth.audiences", &auth.audiences),
        ("auth.issuers", &auth.issuers),
        ("auth.required_scopes", &auth.required_scopes),
    ];
    for (field, list) in lists {
        if list.iter().any(String::is_empty) {
            return refuse(field, "must not have an empty entry");
        }
    }
    if auth.leeway_seconds > MAX_LEEWAY_SECONDS {
        let problem = format!("must be at most {MAX_LEEWAY_SECONDS}");
        return refuse("auth.leeway_seconds", problem);
    }
    Ok(())
}

fn check_keys(keys: &[InlineKey]) -> Result<(), ConfigError> {
    let mut kids = BTreeSet::new();
    for key in keys {
        if key.kid.is_empty() {
            return refuse("auth.keys.kid", "must not be empty");
        }
        if !kids.insert(&key.kid) {
            return refuse("auth.keys.kid", "must differ from key to key");
        }
    }
    crate::auth::check_keys(keys)
}

fn check_jwks(settings: &JwksSettings) -> Result<(), ConfigError> {
    if let Err(problem) = check_address(settings.url.expose()) {
        return refuse("auth.jwks_url", problem);
    }
    check_positive([("auth.jwks_refresh_seconds", settings.refresh_seconds.into())])?;
    let refresh = u64::from(settings.refresh_seconds);
    let least = refresh + refresh.div_ceil(10) + STALE_MARGIN_SECONDS;
    if u64::from(settings.max_stale_seconds) < least {
        let problem = "must be at least auth.jwks_refresh_seconds, a tenth of it, and 10";
        return refuse("auth.jwks_max_stale_seconds", problem);
    }
    Ok(())
}

fn check_api_keys(keys: &BTreeMap<String, Secret>) -> Result<(), ConfigError> {
    let mut values = BTreeSet::new();
    for (name, value) in keys {
        let (field, value) = (format!("auth.api_keys.{name}"), value.expose());
        let is_visible = value.bytes().all(|byte| byte.is_ascii_graphic());
        if !API_KEY_BYTES.contains(&value.len()) || !is_visible {
            let (least, most) = (API_KEY_BYTES.start(), API_KEY_BYTES.end());
            let problem = format!("must have {least} to {most} visible ASCII characters");
            return refuse(field, problem);
        }
        if !values.insert(value) {
            return refuse(field, "must differ from every other API key");
        }
    }
    Ok(())
}
