//! The rooms together: receipt, processing, Welcomes and sends over one disk and one backend.

mod crash;
mod depend;
mod fairness;
mod hostile;
pub(crate) mod play;
mod put_back;
mod receive;
mod requests;
mod room;
mod workers;
pub(crate) mod world;
