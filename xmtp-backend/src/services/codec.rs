//! The codec of the streams: frames go out without being encoded again.

use std::fmt;
use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::status::Failure;
use crate::limits::{STREAM_BUFFER_BYTES, STREAM_YIELD_BYTES};
use crate::session::Frame;
use crate::stream::{Kind, encode};

/// Writes the frames and reads the requests of one kind of stream.
pub(super) struct FrameCodec<K>(PhantomData<fn() -> K>);

impl<K> Default for FrameCodec<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K> fmt::Debug for FrameCodec<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrameCodec")
    }
}

impl<K: Kind> Codec for FrameCodec<K> {
    type Encode = Frame;
    type Decode = K::Request;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

/// Most streams are silent most of the time, so they begin with small buffers.
fn buffers() -> BufferSettings {
    BufferSettings::new(STREAM_BUFFER_BYTES, STREAM_YIELD_BYTES)
}

impl<K: Kind> Encoder for FrameCodec<K> {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        encode::<K, _>(&frame, out, |out, bytes| out.reserve(bytes));
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl<K: Kind> Decoder for FrameCodec<K> {
    type Item = K::Request;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<K::Request>, Status> {
        let request = K::Request::decode(bytes);
        let refused = |_| Failure::Malformed.status("the request can not be read");
        request.map(Some).map_err(refused)
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
