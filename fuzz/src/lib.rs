//! The fuzzers: each file of `fuzz_targets/` runs the target of its name.
//!
//! What a target does is in `xmtp_testkit::fuzz`, where an ordinary test runs it too.

#![forbid(unsafe_code)]

/// Makes the program of one target.
#[macro_export]
macro_rules! fuzz {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| xmtp_testkit::fuzz::run($name, bytes));
    };
}
