//! Groups of the filter `groupby`.

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use std::fmt;
use std::sync::Arc;

/// Group of the filter `groupby`: a tuple that also has names.
#[derive(Debug)]
pub(super) struct ItemGroup {
    pub grouper: Value,
    pub list: Value,
}

impl Object for ItemGroup {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), None) | (None, Some("grouper")) => Some(self.grouper.clone()),
            (Some(1), None) | (None, Some("list")) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("group")
    }
}
