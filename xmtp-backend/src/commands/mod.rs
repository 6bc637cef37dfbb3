//! What the program does, one module for each command.
//!
//! A command ends with a message for whoever typed it, or without one.

mod check;
mod fence;
mod prune;
mod schema;
mod serve;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

const USAGE: &str = "usage:
  xmtp-backend --config FILE          serves
  xmtp-backend check FILE             reads a configuration file and names what is wrong with it
  xmtp-backend schema                 prints the JSON schema of the configuration file
  xmtp-backend fence --config FILE    makes a restored database safe to serve; stop the server first
  xmtp-backend prune --config FILE    deletes what has expired; stop the server first
  xmtp-backend --version              prints the version
  xmtp-backend --help                 prints this";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Serve(PathBuf),
    Check(PathBuf),
    Schema,
    Fence(PathBuf),
    Prune(PathBuf),
    Version,
    Help,
}

/// Reads the arguments.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Command, String> {
    match arguments {
        [flag, path] if flag == "--config" => Ok(Command::Serve(path.into())),
        [command, path] if command == "check" => Ok(Command::Check(path.into())),
        [command] if command == "schema" => Ok(Command::Schema),
        [command, flag, path] if command == "fence" && flag == "--config" => {
            Ok(Command::Fence(path.into()))
        }
        [command, flag, path] if command == "prune" && flag == "--config" => {
            Ok(Command::Prune(path.into()))
        }
        [flag] if flag == "--version" => Ok(Command::Version),
        [flag] if flag == "--help" => Ok(Command::Help),
        _ => Err(USAGE.to_owned()),
    }
}

/// Does what was asked for.
pub(crate) fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Serve(path) => serve::run(&path),
        Command::Check(path) => check::run(&path),
        Command::Schema => schema::run(),
        Command::Fence(path) => fence::run(&path),
        Command::Prune(path) => prune::run(&path),
        Command::Version => say(concat!("xmtp-backend ", env!("CARGO_PKG_VERSION"))),
        Command::Help => say(USAGE),
    }
}

/// Runs one command on a runtime of its own.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no runtime: {}", error.kind()))?;
    Ok(runtime.block_on(work))
}

/// Tells whoever started the program why it ended; there may be no log yet.
pub(crate) fn complain(message: &str) {
    // Who has closed the channel for errors does not want to know.
    let _ = writeln!(std::io::stderr(), "xmtp-backend: {message}");
}

/// Tells whoever typed the command what came of it; a reader that has enough is no failure.
fn say(message: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    let said = writeln!(out, "{message}").and_then(|()| out.flush());
    match said {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the output can not be written: {}", error.kind()))
        }
        _ => Ok(()),
    }
}
