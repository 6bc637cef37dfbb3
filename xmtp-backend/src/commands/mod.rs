//! What the program does, one module for each command.
//!
//! A command ends with a message for whoever typed it, or without one.

mod check;
mod schema;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;

const USAGE: &str = "usage:
  xmtp-backend --config FILE          serves
  xmtp-backend check FILE             reads a configuration file and names what is wrong with it
  xmtp-backend schema                 prints the JSON schema of the configuration file";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Serve(PathBuf),
    Check(PathBuf),
    Schema,
    Help,
}

/// Reads the arguments.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Command, String> {
    match arguments {
        [flag, path] if flag == "--config" => Ok(Command::Serve(path.into())),
        [command, path] if command == "check" => Ok(Command::Check(path.into())),
        [command] if command == "schema" => Ok(Command::Schema),
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
        Command::Help => {
            say(USAGE);
            Ok(())
        }
    }
}

/// Tells whoever started the program why it ended; there may be no log yet.
#[allow(clippy::print_stderr)]
pub(crate) fn complain(message: &str) {
    eprintln!("xmtp-backend: {message}");
}

/// Tells whoever typed the command what came of it.
#[allow(clippy::print_stdout)]
fn say(message: &str) {
    println!("{message}");
}
