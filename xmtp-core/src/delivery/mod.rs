//! D: hands stored messages to the application, once or more, in local order.

pub(crate) mod store;
