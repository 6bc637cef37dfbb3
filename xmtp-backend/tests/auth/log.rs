//! What the server logs while a test runs, on the one thread of the test.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Takes what is logged until the guard is dropped.
    pub(crate) fn listen(&self) -> DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(self.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("text")
    }

    pub(crate) fn line_with(&self, part: &str) -> String {
        let text = self.text();
        let line = text.lines().find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("{part}: {text}")).to_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
