//! GetConfiguration.

use tonic::Status;
use xmtp_proto::backend::v1::{GetConfigurationRequest, GetConfigurationResponse};

use super::Services;
use crate::hooks::Call;

impl Services {
    /// Returns the response that was built at startup.
    pub async fn configuration(
        &self,
        _request: GetConfigurationRequest,
    ) -> Result<GetConfigurationResponse, Status> {
        self.begin(Call::GetConfiguration).await?;
        Ok(self.inner.configuration.clone())
    }
}
