//! Dispatches an operation to the device of its tensors.

/// Returns the device's result of an operation if the tensor is on a device.
macro_rules! on_device {
    ($tensor:expr, $call:expr) => {
        #[cfg(feature = "cuda")]
        {
            if $tensor.device().is_cuda() {
                return $call;
            }
        }
    };
}
pub(super) use on_device;
