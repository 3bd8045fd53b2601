//! The compute device of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The compute device of a run: `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Device {
    /// An NVIDIA device if there is one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA device with this number. Without a number, the first one; with several processes on a machine, each process uses its own.
    Cuda(Option<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(None)),
            Some(("cuda", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map(|number| Self::Cuda(Some(number))).map_err(|e| format!("{text:?}: {e}"))
            }
            _ => Err(format!("{text:?} is not a device; use auto, cpu, cuda or cuda:N")),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(number)) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for text in ["auto", "cpu", "cuda", "cuda:0", "cuda:12"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:99999999999999999999"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
