//! The sections `[chains]` and `[validation]`.
//!
//! ```toml
//! [chains]
//! "eip155:1" = "env:ETHEREUM_RPC_URL"
//! "eip155:8453" = "https://base.example.org"
//!
//! [validation]
//! max_scw_cache_entries = 10000
//! ```

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::resolve;
use super::{ConfigError, Secret, check_address, check_positive, refuse};

/// How contract wallets are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "validation")]
pub struct Validation {
    /// The most verdicts over contract wallet signatures that are remembered.
    #[schemars(range(min = 1))]
    pub max_scw_cache_entries: u32,
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            max_scw_cache_entries: 10_000,
        }
    }
}

pub(super) fn read(
    chains: BTreeMap<String, String>,
) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let resolved = chains.into_iter().map(|(chain, url)| {
        let url = resolve(&format!("chains.{chain}"), url)?;
        Ok((chain, Secret::new(url)))
    });
    resolved.collect()
}

pub(super) fn check(
    chains: &BTreeMap<String, Secret>,
    validation: &Validation,
) -> Result<(), ConfigError> {
    for (chain, url) in chains {
        let field = format!("chains.{chain}");
        let number = chain.strip_prefix("eip155:").unwrap_or("");
        let is_plain = !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
        if !is_plain || number.parse::<u64>().is_err() {
            let problem = "must be named eip155: and the number of the chain";
            return refuse(field, problem);
        }
        if let Err(problem) = check_address(url.expose()) {
            return refuse(field, problem);
        }
    }
    let entries = validation.max_scw_cache_entries;
    check_positive([("validation.max_scw_cache_entries", entries.into())])
}
