//! The address of a PostgreSQL server, and what it says of TLS.
//!
//! `sslmode` and `sslrootcert` mean what they mean to libpq. The driver knows only a part of that,
//! so both are taken out of the address before the driver reads the rest.

use std::path::PathBuf;

use tokio_postgres::config::{Host, SslMode};

use super::Secret;

/// An address that was read.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The server, and whether TLS is asked for.
    pub(crate) server: tokio_postgres::Config,
    /// What TLS proves, where it is used.
    pub(crate) proof: Proof,
}

/// What TLS proves about the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing: whoever sits between can still read (`prefer`, `require`).
    Nothing,
    /// An authority of this file signed its certificate (`verify-ca`, `require` with a file).
    Authority(PathBuf),
    /// An authority signed a certificate for its name (`verify-full`).
    Name(Authorities),
}

/// Whose signature counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Authorities {
    /// Those that the machine trusts.
    System,
    /// Those of a file of PEM certificates.
    File(PathBuf),
}

const NO_ADDRESS: &str = "must be postgres://USER@HOST/NAME";
const UNKNOWN_MODE: &str = "sslmode must be disable, prefer, require, verify-ca or verify-full";
const FILE_OF_NO_USE: &str = "sslrootcert needs sslmode=require, verify-ca or verify-full";
const FILE_MISSING: &str = "sslmode=verify-ca needs sslrootcert=FILE";
const SYSTEM_IS_WEAK: &str = "sslrootcert=system needs sslmode=verify-full";

impl Address {
    /// Reads an address; an error shows none of it.
    pub(crate) fn read(url: &Secret) -> Result<Self, &'static str> {
        let split = Split::of(url.expose()).ok_or(NO_ADDRESS)?;
        let mut server: tokio_postgres::Config = split.rest.parse().map_err(|_| NO_ADDRESS)?;
        if server.get_hosts().is_empty() {
            return Err(NO_ADDRESS);
        }
        let (mode, proof) = tls(split.mode.as_deref(), split.authorities)?;
        // TLS is for networks: a server offers none on a socket of its machine.
        let is_local = |host: &Host| matches!(host, Host::Unix(_));
        let local = server.get_hosts().iter().all(is_local);
        server.ssl_mode(if local { SslMode::Disable } else { mode });
        Ok(Self { server, proof })
    }
}

/// An address without what it says of TLS.
struct Split {
    rest: String,
    mode: Option<String>,
    authorities: Option<Authorities>,
}

impl Split {
    fn of(url: &str) -> Option<Self> {
        let schemes = ["postgres://", "postgresql://"];
        schemes.iter().find(|scheme| url.starts_with(**scheme))?;
        // A password may hold a question mark.
        let host = url.find('@').map_or(0, |at| at + 1);
        let Some(question) = url[host..].find('?') else {
            let rest = url.to_owned();
            let (mode, authorities) = (None, None);
            return Some(Self {
                rest,
                mode,
                authorities,
            });
        };
        let (server, parameters) = url.split_at(host + question);
        let (mut mode, mut authorities, mut others) = (None, None, Vec::new());
        for parameter in parameters[1..].split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            // The driver would take an encoded name for the same parameter.
            match decode(name)?.as_str() {
                "sslmode" => mode = Some(decode(value)?),
                "sslrootcert" => {
                    authorities = Some(match decode(value)?.as_str() {
                        "system" => Authorities::System,
                        path => Authorities::File(path.into()),
                    });
                }
                _ => others.push(parameter),
            }
        }
        let rest = format!("{server}?{}", others.join("&"));
        Some(Self {
            rest: rest.trim_end_matches('?').to_owned(),
            mode,
            authorities,
        })
    }
}

/// Undoes percent encoding; `None` if what comes out is no text.
fn decode(value: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

fn tls(
    mode: Option<&str>,
    authorities: Option<Authorities>,
) -> Result<(SslMode, Proof), &'static str> {
    use Authorities::{File, System};
    let proof = match (mode, authorities) {
        (Some("disable"), None) => return Ok((SslMode::Disable, Proof::Nothing)),
        (None | Some("prefer"), None) => return Ok((SslMode::Prefer, Proof::Nothing)),
        (Some("require"), None) => Proof::Nothing,
        (Some("require" | "verify-ca"), Some(File(path))) => Proof::Authority(path),
        (Some("verify-ca"), None) => return Err(FILE_MISSING),
        (Some("verify-full"), authorities) => Proof::Name(authorities.unwrap_or(System)),
        (None, Some(System)) => Proof::Name(System),
        (None | Some("disable" | "prefer"), Some(File(_))) => return Err(FILE_OF_NO_USE),
        (Some("disable" | "prefer" | "require" | "verify-ca"), Some(System)) => {
            return Err(SYSTEM_IS_WEAK);
        }
        (Some(_), _) => return Err(UNKNOWN_MODE),
    };
    Ok((SslMode::Require, proof))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &str) -> Result<(SslMode, Proof), &'static str> {
        let url = format!("postgres://xmtp:a?b%40c@db.example:5433/xmtp{parameters}");
        let address = Address::read(&Secret::new(url))?;
        let server = &address.server;
        assert_eq!(server.get_hosts(), [Host::Tcp("db.example".to_owned())]);
        assert_eq!(server.get_password(), Some(&b"a?b@c"[..]));
        Ok((server.get_ssl_mode(), address.proof))
    }

    #[test]
    fn modes_mean_what_they_mean_to_libpq() {
        use SslMode::{Disable, Prefer, Require};
        let file = || PathBuf::from("/etc/db ca.pem");
        let name = |authorities| Ok((Require, Proof::Name(authorities)));
        let file_is_named = "sslrootcert=/etc/db%20ca.pem";
        for (parameters, read_as) in [
            ("", Ok((Prefer, Proof::Nothing))),
            ("?sslmode=disable", Ok((Disable, Proof::Nothing))),
            ("?sslmode=prefer", Ok((Prefer, Proof::Nothing))),
            ("?sslmode=require", Ok((Require, Proof::Nothing))),
            (
                "?sslmode=require&FILE",
                Ok((Require, Proof::Authority(file()))),
            ),
            (
                "?FILE&sslmode=verify-ca",
                Ok((Require, Proof::Authority(file()))),
            ),
            ("?sslmode=verify-full", name(Authorities::System)),
            ("?sslmode=verify-full&FILE", name(Authorities::File(file()))),
            ("?sslrootcert=system", name(Authorities::System)),
            (
                "?sslmode=verify%2Dfull&sslrootcert=system",
                name(Authorities::System),
            ),
            (
                "?application_name=a&sslmode=require&connect_timeout=3",
                Ok((Require, Proof::Nothing)),
            ),
            ("?sslmode=allow", Err(UNKNOWN_MODE)),
            ("?sslmode=Require", Err(UNKNOWN_MODE)),
            ("?sslmode=verify-ca", Err(FILE_MISSING)),
            ("?sslmode=require&sslrootcert=system", Err(SYSTEM_IS_WEAK)),
            ("?sslmode=verify-ca&sslrootcert=system", Err(SYSTEM_IS_WEAK)),
            ("?FILE", Err(FILE_OF_NO_USE)),
            ("?sslmode=prefer&FILE", Err(FILE_OF_NO_USE)),
            ("?sslmode=disable&FILE", Err(FILE_OF_NO_USE)),
            ("?sslmode=require&sslcert=client.pem", Err(NO_ADDRESS)),
            ("?sslmode=%zz", Err(NO_ADDRESS)),
            ("?ssl%6Dode=require", Ok((Require, Proof::Nothing))),
            ("?%73slmode=verify-full", name(Authorities::System)),
            ("?sslroot%63ert=system", name(Authorities::System)),
            ("?sslmode=verify-full&sslmod%65=allow", Err(UNKNOWN_MODE)),
            ("?ssl%zzmode=require", Err(NO_ADDRESS)),
            ("?sslmode", Err(UNKNOWN_MODE)),
        ] {
            let parameters = parameters.replace("FILE", file_is_named);
            assert_eq!(read(&parameters), read_as, "{parameters}");
        }
    }

    #[test]
    fn a_socket_of_the_machine_carries_no_tls() {
        for parameters in ["", "?sslmode=verify-full"] {
            let url = format!("postgresql://xmtp@%2Frun%2Fpostgresql/xmtp{parameters}");
            let address = Address::read(&Secret::new(url)).expect("an address");
            assert_eq!(address.server.get_ssl_mode(), SslMode::Disable);
        }
    }
}
