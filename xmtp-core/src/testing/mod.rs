//! Doubles and conformance suites for those who implement a seam or test on top of one.

pub mod conformance;
pub mod faulty;
pub mod memory;
pub mod mock;
pub mod scripted;
pub mod transport_suite;
