//! What clients are told.

use prost::Message;
use xmtp_proto::backend::v1::{AuthConfiguration, GetConfigurationResponse};
use xmtp_proto::limits::MAX_CONFIGURATION_RESPONSE_BYTES;

use super::{Config, ConfigError};

/// Builds the response of GetConfiguration.
///
/// - Fails if it would be larger than clients accept, which bounds the lists in it.
/// - Holds no address, no key and no setting of listener or database.
pub(crate) fn published(config: &Config) -> Result<GetConfigurationResponse, ConfigError> {
    let response = GetConfigurationResponse {
        identifier: config.server.identifier.clone(),
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        min_libxmtp_version: config
            .server
            .min_libxmtp_version
            .clone()
            .unwrap_or_default(),
        auth: Some(AuthConfiguration::default()),
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
