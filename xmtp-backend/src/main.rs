//! The program: serves, and what an operator does beside that.

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match commands::parse(&arguments).and_then(commands::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            commands::complain(&message);
            ExitCode::FAILURE
        }
    }
}
