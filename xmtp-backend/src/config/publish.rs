//! What clients are told.

use prost::Message;
use xmtp_proto::backend::v1::auth_configuration::SigningKey;
use xmtp_proto::backend::v1::{AuthConfiguration, GetConfigurationResponse};
use xmtp_proto::limits::MAX_CONFIGURATION_RESPONSE_BYTES;

use super::{Auth, Config, ConfigError, KeySource};

/// Builds the response of GetConfiguration.
///
/// - `loaded` is the key set that was loaded at startup from `auth.jwks_url`; without one it is
///   not looked at. A later refresh of the set does not change the response (CFG-027).
/// - Fails if it would be larger than clients accept, which bounds the lists in it.
/// - Holds no address, no key and no setting of listener or database (CFG-024).
pub(crate) fn published(
    config: &Config,
    loaded: &[SigningKey],
) -> Result<GetConfigurationResponse, ConfigError> {
    let auth = config.auth.as_ref();
    let response = GetConfigurationResponse {
        identifier: config.server.identifier.clone(),
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        min_libxmtp_version: config
            .server
            .min_libxmtp_version
            .clone()
            .unwrap_or_default(),
        auth: Some(auth.map_or_else(AuthConfiguration::default, |auth| {
            published_auth(auth, loaded)
        })),
        retention: Some(config.retention),
        limits: Some(config.limits),
        mls: Some(config.mls),
        smart_contract_wallet_chains: config.chains.keys().cloned().collect(),
    };
    if response.encoded_len() as u64 > MAX_CONFIGURATION_RESPONSE_BYTES {
        let problem = format!("is larger than {MAX_CONFIGURATION_RESPONSE_BYTES} bytes");
        return Err(ConfigError::new("GetConfigurationResponse", problem));
    }
    Ok(response)
}

fn published_auth(auth: &Auth, loaded: &[SigningKey]) -> AuthConfiguration {
    let keys = match &auth.keys {
        KeySource::None => Vec::new(),
        KeySource::Jwks(_) => loaded.to_vec(),
        KeySource::Inline(keys) => {
            let named = keys.iter().map(|key| SigningKey {
                kid: key.kid.clone(),
                alg: key.alg.name().to_owned(),
            });
            named.collect()
        }
    };
    AuthConfiguration {
        enabled: true,
        keys,
        audiences: auth.audiences.clone(),
        issuers: auth.issuers.clone(),
        required_scopes: auth.required_scopes.clone(),
    }
}
