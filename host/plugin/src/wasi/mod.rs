//! A WASI 0.2 without access to anything: no files except those in granted folders, no network, environment or arguments. Clocks advance
//! only when read or slept on, random numbers follow from the seed, and output is kept for error messages.
//!
//! It is built for each component from its imports, so any 0.2 works. [`answer`] and [`files::answer`] implement the functions that have an
//! effect. All others return an empty value of their type: an empty list, none, access denied.

mod files;
mod open_files;
mod state;

pub(super) use state::Wasi;

use super::sandbox::Sandbox;
use rand_chacha::rand_core::Rng;
use state::{TICK, datetime, read};
use std::sync::Arc;
use wasmtime::component::types::{ComponentItem, Type};
use wasmtime::component::{Component, Linker, ResourceDynamic, ResourceType, Val};
use wasmtime::{Result, StoreContextMut, bail};

/// Number of bytes that an instance may write after each check for room.
const WRITABLE: u64 = 1 << 16;

/// Maximum number of random bytes per call.
const MOST_RANDOM: u64 = 1 << 16;

/// Maximum number of resource kinds; WASI 0.2 has about twenty.
const MOST_KINDS: usize = 100;

/// Maximum size of an empty value, in bytes.
const LARGEST_NOTHING: usize = 1 << 16;

/// Error cases that report that something is impossible, in order of preference.
const REFUSALS: [&str; 6] = ["closed", "access", "access-denied", "not-supported", "unsupported", "unknown"];

/// Returns whether this WASI offers an import.
pub(super) fn offers(import: &str) -> bool {
    import.starts_with("wasi:") && !import.starts_with("wasi:http")
}

/// Adds everything of WASI that a component imports to a linker.
pub(super) fn add_to_linker(linker: &mut Linker<Sandbox>, component: &Component) -> Result<()> {
    let engine = component.engine();
    let ty = component.component_type();
    let interfaces = || ty.imports(engine).filter(|(name, _)| offers(name));
    let items = || {
        interfaces().filter_map(|(name, import)| match import.ty {
            ComponentItem::ComponentInstance(instance) => Some((name, instance)),
            _ => None,
        })
    };
    // Resources by name. Interfaces share them.
    let mut kinds: Vec<String> = Vec::new();
    for (_, instance) in items() {
        for (name, item) in instance.exports(engine) {
            if kinds.len() > MOST_KINDS {
                bail!("it imports more resources than WASI has");
            }
            if matches!(item.ty, ComponentItem::Resource(_)) && !kinds.iter().any(|kind| kind == name) {
                kinds.push(name.to_owned());
            }
        }
    }
    let kinds: Arc<[String]> = kinds.into();
    for (name, instance) in items() {
        let interface: Arc<str> = name.split('@').next().unwrap_or_default().into();
        let mut linked = linker.instance(name)?;
        for (name, item) in instance.exports(engine) {
            match item.ty {
                ComponentItem::Resource(_) => {
                    let kind = kinds.iter().position(|kind| kind == name).unwrap_or_default() as u32;
                    linked.resource(name, ResourceType::host_dynamic(kind), |mut store, number| {
                        store.data_mut().wasi().files.close(number);
                        Ok(())
                    })?;
                }
                ComponentItem::ComponentFunc(_) => {
                    let (interface, function, kinds) = (interface.clone(), name.to_owned(), kinds.clone());
                    linked.func_new(name, move |mut store, ty, arguments, results| {
                        let lent =
                            arguments.iter().map(|argument| release(argument, &mut store)).collect::<Result<Vec<u32>>>()?;
                        let said = match answer(&interface, &function, arguments, store.data_mut().wasi())? {
                            Some(said) => Some(said),
                            None => files::answer((&interface, &function), (arguments, &lent), &kinds, &mut store)?,
                        };
                        let mut said = said;
                        for (result, ty) in results.iter_mut().zip(ty.results()) {
                            *result = match said.take() {
                                Some(said) => said,
                                None => nothing(&ty, &kinds, &mut { LARGEST_NOTHING }, &mut store)?,
                            };
                        }
                        Ok(())
                    })?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the result of a function that is implemented.
fn answer(interface: &str, function: &str, arguments: &[Val], wasi: &mut Wasi) -> Result<Option<Val>> {
    let done = |value: Option<Val>| Val::Result(Ok(value.map(Box::new)));
    let value = match (interface, function, arguments) {
        ("wasi:clocks/monotonic-clock", "now", _) => Val::U64(read(&mut wasi.monotonic)),
        ("wasi:clocks/monotonic-clock", "resolution", _) => Val::U64(TICK),
        ("wasi:clocks/monotonic-clock", "subscribe-duration", [Val::U64(duration)]) => {
            wasi.sleep(*duration);
            return Ok(None);
        }
        ("wasi:clocks/monotonic-clock", "subscribe-instant", [Val::U64(instant)]) => {
            wasi.sleep(instant.saturating_sub(wasi.monotonic));
            return Ok(None);
        }
        ("wasi:clocks/wall-clock", "now", _) => datetime(read(&mut wasi.wall)),
        ("wasi:clocks/wall-clock", "resolution", _) => datetime(TICK),
        ("wasi:random/insecure-seed", _, _) => Val::Tuple(vec![Val::U64(wasi.seed), Val::U64(0)]),
        (_, "get-random-u64" | "get-insecure-random-u64", _) => Val::U64(wasi.random(interface).next_u64()),
        (_, "get-random-bytes" | "get-insecure-random-bytes", [Val::U64(length)]) => {
            if *length > MOST_RANDOM {
                bail!("it asked for {length} random bytes at once; the limit is {MOST_RANDOM}");
            }
            let mut bytes = vec![0; *length as usize];
            wasi.random(interface).fill_bytes(&mut bytes);
            Val::List(bytes.into_iter().map(Val::U8).collect())
        }
        ("wasi:cli/exit", ..) => bail!("it called exit"),
        ("wasi:io/poll", "poll", [Val::List(all)]) => Val::List((0..all.len() as u32).map(Val::U32).collect()),
        ("wasi:io/poll", "[method]pollable.ready", _) => Val::Bool(true),
        ("wasi:io/streams", "[method]output-stream.check-write", _) => done(Some(Val::U64(WRITABLE))),
        (
            "wasi:io/streams",
            "[method]output-stream.write" | "[method]output-stream.blocking-write-and-flush",
            [_, Val::List(bytes)],
        ) => {
            let bytes: Vec<u8> = bytes.iter().map(|byte| if let Val::U8(byte) = byte { *byte } else { 0 }).collect();
            wasi.output.push(&bytes);
            done(None)
        }
        ("wasi:io/streams", "[method]output-stream.flush" | "[method]output-stream.blocking-flush", _) => done(None),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// Returns the empty value of a type.
fn nothing(ty: &Type, kinds: &[String], room: &mut usize, store: &mut StoreContextMut<'_, Sandbox>) -> Result<Val> {
    // The types are the plugin's own, with names of any length.
    let mut spend = |bytes: usize| match room.checked_sub(bytes) {
        Some(left) => {
            *room = left;
            Ok(())
        }
        None => Err(wasmtime::Error::msg("an import from WASI has a type that WASI does not have")),
    };
    spend(size_of::<Val>())?;
    match ty {
        Type::Record(record) => record.fields().try_for_each(|field| spend(field.name.len()))?,
        Type::Enum(names) => names.names().try_for_each(|name| spend(name.len()))?,
        Type::Variant(variant) => variant.cases().try_for_each(|case| spend(case.name.len()))?,
        _ => {}
    }
    let mut of = |ty: &Type| nothing(ty, kinds, room, store);
    Ok(match ty {
        Type::Bool => Val::Bool(false),
        Type::S8 => Val::S8(0),
        Type::U8 => Val::U8(0),
        Type::S16 => Val::S16(0),
        Type::U16 => Val::U16(0),
        Type::S32 => Val::S32(0),
        Type::U32 => Val::U32(0),
        Type::S64 => Val::S64(0),
        Type::U64 => Val::U64(0),
        Type::Float32 => Val::Float32(0.0),
        Type::Float64 => Val::Float64(0.0),
        Type::Char => Val::Char('\0'),
        Type::String => Val::String(String::new()),
        Type::List(_) => Val::List(Vec::new()),
        Type::Option(_) => Val::Option(None),
        Type::Flags(_) => Val::Flags(Vec::new()),
        Type::Tuple(tuple) => Val::Tuple(tuple.types().map(|ty| of(&ty)).collect::<Result<_>>()?),
        Type::Record(record) => {
            Val::Record(record.fields().map(|field| Ok((field.name.to_owned(), of(&field.ty)?))).collect::<Result<_>>()?)
        }
        Type::Enum(names) => {
            let fitting = REFUSALS.into_iter().find(|refusal| names.names().any(|name| name == *refusal));
            Val::Enum(fitting.or_else(|| names.names().next()).unwrap_or_default().to_owned())
        }
        Type::Variant(variant) => {
            let fitting = REFUSALS.into_iter().find(|refusal| variant.cases().any(|case| case.name == *refusal));
            let mut cases = variant.cases();
            let Some(case) = cases.find(|case| fitting.is_none_or(|name| name == case.name)) else {
                bail!("a variant without cases")
            };
            Val::Variant(case.name.to_owned(), case.ty.map(|ty| of(&ty)).transpose()?.map(Box::new))
        }
        Type::Result(result) => Val::Result(Err(result.err().map(|ty| of(&ty)).transpose()?.map(Box::new))),
        Type::Own(resource) => {
            let kind = (0..kinds.len() as u32).find(|kind| ResourceType::host_dynamic(*kind) == *resource);
            let Some(kind) = kind else { bail!("a resource that is not offered") };
            Val::Resource(ResourceDynamic::new_own(0, kind).try_into_resource_any(store)?)
        }
        other => bail!("rlhost's WASI has no value of type {other:?}"),
    })
}

/// Releases the resources that were passed in a call. Returns the number of a borrowed resource if the value is one, otherwise 0.
fn release(value: &Val, store: &mut StoreContextMut<'_, Sandbox>) -> Result<u32> {
    match value {
        Val::Resource(resource) if resource.owned() => resource.resource_drop(store)?,
        Val::Resource(resource) => return Ok(ResourceDynamic::try_from_resource_any(*resource, store)?.rep()),
        Val::List(values) | Val::Tuple(values) => {
            for value in values {
                release(value, store)?;
            }
        }
        _ => {}
    }
    Ok(0)
}
