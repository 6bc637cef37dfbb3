//! Addresses that are asked for what the server then believes.

use std::net::IpAddr;

use reqwest::Url;

/// Checks the address of a node or of a key set; what is wrong is told without showing it.
///
/// - Whoever can change an answer on its way decides what the server believes, so plain text stays on
///   this machine.
pub(crate) fn check_address(address: &str) -> Result<(), &'static str> {
    let problem = "must be an https address, or an http one on this machine";
    let url = Url::parse(address).map_err(|_| problem)?;
    let is_local = url.host_str().is_some_and(is_loopback);
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_local => Ok(()),
        _ => Err(problem),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_https_or_stays_on_the_machine() {
        let good = [
            "https://node.example.org/key",
            "https://node.example.org:8443",
            "https://user:secret@example.org/keys?secret",
            "http://localhost:8545",
            "http://127.0.0.1:8545/path",
            "http://127.9.9.9",
            "http://[::1]:8545",
        ];
        for address in good {
            assert_eq!(check_address(address), Ok(()), "{address}");
        }
        let bad = [
            "",
            "keys",
            "node.example.org",
            "http://node.example.org",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
            "http://10.0.0.1",
            "http://0.0.0.0/keys",
            "http://[::2]",
            "ws://127.0.0.1",
            "ftp://localhost",
            "file:///keys",
            "data:,{}",
            "https:",
        ];
        for address in bad {
            let problem = check_address(address).expect_err(address);
            assert!(address.is_empty() || !problem.contains(address));
        }
    }
}
