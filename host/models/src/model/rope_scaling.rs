//! Computes rotary frequencies and their scalings from both forms of `config.json`: `rope_theta` with `rope_scaling`, and
//! transformers 5's `rope_parameters`.

use super::family::Family;
use super::json::ConfigObject;
use super::varied_layers::whole_head_dim;
use crate::config::{printable, shortest};
use crate::ops::rope::Rotation;
use std::f64::consts::TAU;

/// Maximum number of positions of the original training; see the architecture's limits.
const MOST_POSITIONS: usize = 1 << 24;

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Number of rotated dimensions of a head, counted from the first.
    pub dims: usize,
}

/// Scaling of frequencies beyond the model's original training length.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling. This includes dynamic scaling, which has no effect up to the model's context length.
    None,
    /// All frequencies divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided, short ones kept, with a smooth transition between.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths longer than `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Number of positions in the original training.
        original: f64,
    },
    /// `YaRN` (Peng et al. 2023, arXiv 2309.00071): frequencies below a number of rotations are divided, with a linear transition, and
    /// queries and keys are scaled.
    Yarn {
        /// Divisor of the frequencies.
        factor: f64,
        /// Number of positions in the original training.
        original: f64,
        /// First and last dimension of the transition.
        ramp: (f64, f64),
        /// Factor of queries and keys.
        attention_factor: f64,
    },
    /// Only the first pairs of dimensions are rotated, with the frequencies that they have where all are; then all divided by a factor.
    Proportional {
        /// Number of rotated pairs.
        pairs: usize,
        /// The divisor.
        factor: f64,
    },
    /// `LongRoPE` (Ding et al. 2024, arXiv 2402.13753) within the original training length: a divisor for each frequency.
    Long {
        /// The divisors.
        factors: Vec<f64>,
        /// Factor of queries and keys.
        attention_factor: f64,
    },
}

/// The rotary embeddings in a `config.json`.
#[derive(Debug, PartialEq)]
pub(super) struct ModelRopes {
    /// RoPE of layers with full attention, or of all layers.
    pub full: Rope,
    /// RoPE of layers with sliding windows, if separate.
    pub sliding: Option<Rope>,
    /// Maximum number of positions for which the frequencies are valid, if fewer than the model's.
    pub limit: Option<usize>,
}

/// Context for reading the keys of rotary embeddings.
pub(super) struct RopeContext {
    pub family: Family,
    pub head_dim: usize,
    pub max_positions: usize,
}

/// Defaults for objects of parameters that lack values.
struct RopeDefaults {
    theta: f64,
    partial: f64,
}

/// Reads bases and scalings from a `config.json`. The error names the field.
pub(super) fn resolve(config: &ConfigObject, context: &RopeContext) -> Result<ModelRopes, String> {
    let (new, old) = (config.object("rope_parameters")?, config.object("rope_scaling")?);
    let scaling = old.as_ref().filter(|old| old.all().next().is_some());
    if let (Some(_), Some(_)) = (&new, scaling) {
        return Err(
            "rope_scaling and rope_parameters are both given; transformers ignores one of them, so keep only the other".into()
        );
    }
    if context.family.is_gemma4() {
        return of_gemma4(config, new, context);
    }
    let two = matches!(context.family, Family::Gemma3 | Family::Olmo3);
    let (key, p) = match (new, old) {
        (Some(new), _) if two => return nested(config, &new, context),
        (Some(new), _) => ("rope_parameters", new),
        (None, Some(old)) => ("rope_scaling", old),
        (None, None) if context.family == Family::GptOss => {
            return Err("rope_parameters is missing; a model of type gpt_oss needs it".into());
        }
        (None, None) => ("rope_scaling", ConfigObject::default()),
    };
    let (theta_key, partial_key) = match context.family {
        Family::GptNeoX => ("rotary_emb_base", "rotary_pct"),
        _ => ("rope_theta", "partial_rotary_factor"),
    };
    let theta = config.number(theta_key)?;
    if let (Some(outer), Some(inner)) = (theta, p.number("rope_theta").map_err(|e| format!("{key}: {e}"))?)
        && outer != inner
    {
        let (outer, inner) = (shortest(outer), shortest(inner));
        return Err(format!("{theta_key} is {outer}, but {key} has rope_theta {inner}; keep one of them"));
    }
    let partial = match context.family {
        family if turns_partly(family) => config.number(partial_key)?,
        _ => None,
    };
    let described = context.family.description();
    let partial = partial.unwrap_or(match context.family {
        Family::Glm4 | Family::Glm4Moe => 0.5,
        Family::GptNeoX | Family::Qwen3_5 | Family::Qwen3_5Moe | Family::Qwen3Next | Family::StableLm => 0.25,
        _ => 1.0,
    });
    let original = config.size("original_max_position_embeddings", MOST_POSITIONS)?;
    let defaults = RopeDefaults { theta: theta.unwrap_or(described.theta), partial };
    let (full, limit) = one(&p, key, &defaults, original, context)?;
    agree(config, context, &full, (theta_key, partial_key))?;
    let sliding = match context.family {
        Family::Gemma3 => Some(plain(config.number("rope_local_base_freq")?.unwrap_or(1e4), context)?),
        // transformers 5 gives layers with windows the default in this case, whatever rope_theta is.
        Family::Olmo3 if full.theta != described.theta => {
            return Err(format!(
                "rope_theta is {}; use rope_parameters, which set it for both kinds of layers",
                shortest(full.theta)
            ));
        }
        Family::Olmo3 => Some(plain(described.theta, context)?),
        _ => None,
    };
    Ok(ModelRopes { full, sliding, limit })
}

/// Returns an error if another key of the base, or of the rotated part of a head, has a different value. transformers 4 writes two keys for
/// each, and no version of it reads the second.
fn agree(
    config: &ConfigObject,
    context: &RopeContext,
    rope: &Rope,
    (theta_key, partial_key): (&str, &str),
) -> Result<(), String> {
    let model_type = context.family.description().model_type;
    for other in ["rope_theta", "rotary_emb_base"].into_iter().filter(|other| *other != theta_key) {
        if let Some(given) = config.number(other)?.filter(|given| *given != rope.theta) {
            let (own, given) = (shortest(rope.theta), shortest(given));
            return Err(format!(
                "{other} is {given}, but a model of type {model_type} uses {theta_key}, which is {own}; make them equal"
            ));
        }
    }
    let others = ["partial_rotary_factor", "rotary_pct", "rope_pct"].into_iter().filter(|other| *other != partial_key);
    for other in others.filter(|_| turns_partly(context.family)) {
        let differs = |given: &f64| (context.head_dim as f64 * given) as usize != rope.dims;
        if let Some(given) = config.number(other)?.filter(differs) {
            let own = rope.dims as f64 / context.head_dim as f64;
            return Err(format!(
                "{other} is {given}, but a model of type {model_type} uses {partial_key}, which gives {own}; make them equal"
            ));
        }
    }
    Ok(())
}

/// Reads `rope_parameters` with an object for each kind of layer.
fn nested(config: &ConfigObject, all: &ConfigObject, context: &RopeContext) -> Result<ModelRopes, String> {
    let theta = context.family.description().theta;
    let local = if context.family == Family::Gemma3 { 1e4 } else { theta };
    let kind = |key: &str, theta: f64| {
        let within = |e: String| format!("rope_parameters: {e}");
        let p = all.object(key).map_err(within)?.unwrap_or_default();
        one(&p, &format!("rope_parameters: {key}"), &RopeDefaults { theta, partial: 1.0 }, None, context)
    };
    let full_default = config.number("rope_theta")?.unwrap_or(theta);
    let ((full, limit), (sliding, shorter)) = (
        kind("full_attention", full_default)?,
        kind("sliding_attention", config.number("rope_local_base_freq")?.unwrap_or(local))?,
    );
    if let Some((key, _)) = all.unread().next() {
        let key = printable(key, 80);
        return Err(format!("rope_parameters: {key:?} is neither full_attention nor sliding_attention"));
    }
    Ok(ModelRopes { full, sliding: Some(sliding), limit: [limit, shorter].into_iter().flatten().min() })
}

/// Reads the RoPEs of a Gemma 4, which has an object for each kind of layer or the defaults of both.
fn of_gemma4(config: &ConfigObject, given: Option<ConfigObject>, context: &RopeContext) -> Result<ModelRopes, String> {
    let whole = RopeContext { head_dim: whole_head_dim(config, context.head_dim)?, ..*context };
    let Some(all) = given else {
        let pairs = whole.head_dim / 8;
        let full = Rope { theta: 1e6, scaling: RopeScaling::Proportional { pairs, factor: 1.0 }, dims: whole.head_dim };
        return Ok(ModelRopes { full, sliding: Some(plain(1e4, context)?), limit: None });
    };
    let kind = |key: &str, theta: f64, context: &RopeContext| {
        let p = all.object(key).map_err(|e| format!("rope_parameters: {e}"))?;
        let p = p.ok_or_else(|| format!("rope_parameters: {key} is missing; it must be an object"))?;
        one(&p, &format!("rope_parameters: {key}"), &RopeDefaults { theta, partial: 1.0 }, None, context)
    };
    let (full, limit) = kind("full_attention", 1e6, &whole)?;
    let (sliding, shorter) = kind("sliding_attention", 1e4, context)?;
    if let Some((key, _)) = all.unread().next() {
        let key = printable(key, 80);
        return Err(format!("rope_parameters: {key:?} is neither full_attention nor sliding_attention"));
    }
    Ok(ModelRopes { full, sliding: Some(sliding), limit: [limit, shorter].into_iter().flatten().min() })
}

/// Reads the share of a head's pairs that are rotated, and the divisor of their frequencies.
fn proportional(p: &ConfigObject, key: &str, dims: usize) -> Result<RopeScaling, String> {
    let inside = |e: String| format!("{key}: {e}");
    let share = p.number("partial_rotary_factor").map_err(inside)?.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&share) {
        return Err(inside(format!("partial_rotary_factor {} must be between 0 and 1", shortest(share))));
    }
    let factor = if p.get("factor").is_some() { needed(p, key, "factor")? } else { 1.0 };
    Ok(RopeScaling::Proportional { pairs: (share * dims as f64 / 2.0) as usize, factor })
}

/// Returns an embedding without scaling.
fn plain(theta: f64, context: &RopeContext) -> Result<Rope, String> {
    let none = RopeDefaults { theta, partial: 1.0 };
    one(&ConfigObject::default(), "rope_local_base_freq", &none, None, context).map(|(rope, _)| rope)
}

/// Reads one object of parameters. Returns the embedding and the maximum number of positions, if limited.
fn one(
    p: &ConfigObject,
    key: &str,
    defaults: &RopeDefaults,
    original: Option<usize>,
    context: &RopeContext,
) -> Result<(Rope, Option<usize>), String> {
    let inside = |e: String| format!("{key}: {e}");
    let alpha = alpha(p, context).map_err(inside)?;
    let theta = p.number("rope_theta").map_err(inside)?.unwrap_or(defaults.theta) * alpha.unwrap_or(1.0);
    let partial = match context.family {
        family if turns_partly(family) => p.number("partial_rotary_factor").map_err(inside)?.unwrap_or(defaults.partial),
        _ => 1.0,
    };
    let dims = (context.head_dim as f64 * partial) as usize;
    if !(partial > 0.0 && partial <= 1.0) || dims < 2 || !dims.is_multiple_of(2) {
        return Err(inside(format!(
            "partial_rotary_factor {partial} must give an even number of dimensions of a head, up to all"
        )));
    }
    let inner = p.size("original_max_position_embeddings", MOST_POSITIONS).map_err(inside)?;
    let original = original.or(inner).unwrap_or(context.max_positions);
    let kind = p.text("rope_type").map_err(inside)?.or(p.text("type").map_err(inside)?);
    let kind = match (kind, context.family) {
        (Some("su" | "yarn"), Family::Phi3) => Some("longrope"),
        (kind, _) => kind,
    };
    let mut limit = None;
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("dynamic") if alpha.is_some() => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: needed(p, key, "factor")? },
        Some("dynamic") => {
            needed(p, key, "factor")?;
            RopeScaling::None
        }
        Some("proportional") if context.family.is_gemma4() => proportional(p, key, dims)?,
        Some("llama3") => llama3(p, key, original as f64)?,
        Some("yarn") => yarn(p, key, Rotations { theta, dims, original: original as f64 })?,
        Some("longrope") => {
            limit = Some(original).filter(|original| *original < context.max_positions);
            long(p, key, dims, (original, context.max_positions))?
        }
        Some(other) => {
            let other = printable(other, 80);
            let known = "default, linear, dynamic, llama3, yarn and longrope are";
            return Err(inside(format!("rope type {other:?} is not supported; {known}")));
        }
    };
    if context.family.has_delta_networks() {
        // Sections only affect the positions of images.
        let _ = (p.get("mrope_section"), p.get("mrope_interleaved"));
    }
    if let Some((unknown, _)) = p.unread().next() {
        let unknown = printable(unknown, 80);
        return Err(inside(format!("{unknown:?} is not a known parameter of rope type {:?}", kind.unwrap_or("default"))));
    }
    let rope = Rope { theta, scaling, dims };
    let finite = rope.frequencies().iter().all(|f| f.is_finite()) && rope.attention_factor().is_finite();
    if theta <= 0.0 || !finite {
        let theta = shortest(theta);
        return Err(format!("rope_theta {theta} and the scaling in {key} don't give finite frequencies"));
    }
    Ok((rope, limit))
}

/// Returns the factor by which Hunyuan's `alpha` multiplies the base. Also reads the keys that Ministral 3 stores here for other purposes.
fn alpha(p: &ConfigObject, context: &RopeContext) -> Result<Option<f64>, String> {
    // These keys are read by transformers but have no effect with `alpha`, or are used by `QueryScale`.
    let unused: &[&str] = match context.family {
        Family::HunyuanV1Dense => &["beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"],
        Family::Ministral3 => &["llama_4_scaling_beta", "max_position_embeddings"],
        _ => &[],
    };
    let dims = context.head_dim as f64;
    let kind = p.text("rope_type")?.or(p.text("type")?);
    let dynamic = context.family == Family::HunyuanV1Dense && kind == Some("dynamic");
    let alpha = if dynamic { p.number("alpha")?.filter(|alpha| *alpha != 0.0) } else { None };
    if alpha.is_some() || !dynamic {
        unused.iter().for_each(|key| {
            p.get(key);
        });
    }
    match alpha {
        Some(alpha) if alpha < 0.0 || dims <= 2.0 => Err(format!("alpha {} must be positive", shortest(alpha))),
        alpha => Ok(alpha.map(|alpha| alpha.powf(dims / (dims - 2.0)))),
    }
}

/// Returns whether models of this family may rotate only the first dimensions of a head.
fn turns_partly(family: Family) -> bool {
    use Family::{Glm4, Glm4Moe, GptNeoX, Phi3, StableLm};
    matches!(family, Glm4 | Glm4Moe | GptNeoX | Phi3 | StableLm) || family.has_delta_networks()
}

fn needed(p: &ConfigObject, key: &str, name: &str) -> Result<f64, String> {
    let value = p.number(name).map_err(|e| format!("{key}: {e}"))?;
    value.filter(|v| *v > 0.0).ok_or_else(|| format!("{key}: rope scaling needs a positive {name}"))
}

fn llama3(p: &ConfigObject, key: &str, original: f64) -> Result<RopeScaling, String> {
    let (low_freq_factor, high_freq_factor) = (needed(p, key, "low_freq_factor")?, needed(p, key, "high_freq_factor")?);
    if low_freq_factor >= high_freq_factor {
        let (low_freq_factor, high_freq_factor) = (shortest(low_freq_factor), shortest(high_freq_factor));
        return Err(format!("{key}: low_freq_factor {low_freq_factor} must be less than high_freq_factor {high_freq_factor}"));
    }
    Ok(RopeScaling::Llama3 { factor: needed(p, key, "factor")?, low_freq_factor, high_freq_factor, original })
}

/// The rotations that a scaling changes.
struct Rotations {
    /// Base of the frequencies.
    theta: f64,
    /// Number of rotated dimensions of a head.
    dims: usize,
    /// Length of the texts in the model's original training.
    original: f64,
}

/// Returns YaRN's factor of queries and keys for frequencies divided by `factor`, weighted by `mscale`.
pub(super) fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Reads YaRN's parameters as transformers does.
fn yarn(p: &ConfigObject, key: &str, of: Rotations) -> Result<RopeScaling, String> {
    let Rotations { theta, dims, original } = of;
    let inside = |e: String| format!("{key}: {e}");
    let number = |name: &str| p.number(name).map_err(inside).map(|value| value.filter(|v| *v != 0.0));
    let factor = needed(p, key, "factor")?;
    let scale = |by: f64| yarn_magnitude(factor, by);
    let inferred = match (number("mscale")?, number("mscale_all_dim")?) {
        (Some(own), Some(all)) => scale(own) / scale(all),
        _ => scale(1.0),
    };
    let attention_factor = p.number("attention_factor").map_err(inside)?.unwrap_or(inferred);
    let rotations = |name: &str, default: f64| number(name).map(|value| value.unwrap_or(default));
    let (fast, slow) = (rotations("beta_fast", 32.0)?, rotations("beta_slow", 1.0)?);
    if !(fast > 0.0 && slow > 0.0 && attention_factor > 0.0) {
        return Err(inside("beta_fast, beta_slow and attention_factor must be positive".into()));
    }
    let dimension = |rotations: f64| dims as f64 * (original / (rotations * TAU)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (dimension(fast), dimension(slow));
    if p.flag("truncate").map_err(inside)?.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let ramp = (low.max(0.0), high.min(dims as f64 - 1.0));
    Ok(RopeScaling::Yarn { factor, original, ramp, attention_factor })
}

/// Reads LongRoPE's parameters for texts up to the original length. Longer texts have different divisors at every position, so a prompt's
/// keys would depend on the length of its completions.
fn long(p: &ConfigObject, key: &str, dims: usize, (original, positions): (usize, usize)) -> Result<RopeScaling, String> {
    let inside = |e: String| format!("{key}: {e}");
    let factors = |name: &str| {
        let missing = || format!("{key}: longrope needs a {name} of {} numbers", dims / 2);
        p.numbers(name, dims / 2).map_err(inside)?.ok_or_else(missing)
    };
    let (short, _) = (factors("short_factor")?, factors("long_factor")?);
    let factor = p.number("factor").map_err(inside)?.unwrap_or(positions as f64 / original as f64);
    let inferred = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
    let attention_factor = p.number("attention_factor").map_err(inside)?.unwrap_or(inferred);
    Ok(RopeScaling::Long { factors: short, attention_factor })
}

impl Rope {
    /// Returns the frequency of each pair of dimensions, `[dims / 2]`.
    pub fn frequencies(&self) -> Vec<f32> {
        let count = self.dims / 2;
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / self.dims as f64);
        let scaled = |i: usize| {
            let f = plain(i);
            match &self.scaling {
                RopeScaling::None => f,
                RopeScaling::Linear { factor } => f / factor,
                RopeScaling::Proportional { pairs, factor } => {
                    if i < *pairs {
                        f / factor
                    } else {
                        0.0
                    }
                }
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
                    let wave = TAU / f;
                    if wave < original / high_freq_factor {
                        f
                    } else if wave > original / low_freq_factor {
                        f / factor
                    } else {
                        let smooth = (original / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                }
                RopeScaling::Yarn { factor, ramp: (low, high), .. } => {
                    let width = if low == high { 0.001 } else { high - low };
                    let divided = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    f / factor * divided + f * (1.0 - divided)
                }
                RopeScaling::Long { factors, .. } => f / factors.get(i).copied().unwrap_or(1.0),
            }
        };
        (0..count).map(|i| scaled(i) as f32).collect()
    }

    /// Returns the factor of queries and keys.
    pub fn attention_factor(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => *attention_factor as f32,
            _ => 1.0,
        }
    }

    /// Returns the rotation tables for heads of this size.
    pub(super) fn rotation(&self, head_dim: usize, positions: usize) -> Rotation {
        Rotation::new(&self.frequencies(), positions, self.attention_factor()).with_head_dim(head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(family: Family, text: &str) -> Result<ModelRopes, String> {
        resolve(&ConfigObject::parse(text).unwrap(), &RopeContext { family, head_dim: 16, max_positions: 64 })
    }

    fn frequencies(scaling: RopeScaling) -> Vec<f32> {
        Rope { theta: 1e4, scaling, dims: 16 }.frequencies()
    }

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_blends_between() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 32.0 };
        let (plain, scaled) = (frequencies(RopeScaling::None), frequencies(scaling));
        assert_eq!(plain[0], scaled[0], "a wave of 6.3 is shorter than 32 / 4");
        assert!((scaled[7] - plain[7] / 8.0).abs() < 1e-9, "the longest wave is divided by the factor");
        // The second wavelength, 19.87 positions, lies between 8 and 32.
        let smooth = (32.0 / (TAU / f64::from(plain[1])) - 1.0) / 3.0;
        let want = f64::from(plain[1]) * ((1.0 - smooth) / 8.0 + smooth);
        assert!((f64::from(scaled[1]) - want).abs() < 1e-6);
    }

    #[test]
    fn yarn_divides_slow_dimensions_and_scales_queries_and_keys() {
        let text = r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}"#;
        let rope = parsed(Family::Llama, text).unwrap().full;
        // 16 positions are 2.5 rotations of the fastest dimension: 32 rotations lie before the first, one lies at dimension
        // 16 ln(16 / tau) / (2 ln 1e4) = 0.81.
        assert_eq!(
            rope.scaling,
            RopeScaling::Yarn { factor: 4.0, original: 16.0, ramp: (0.0, 1.0), attention_factor: 0.1 * 4f64.ln() + 1.0 }
        );
        let (plain, scaled) = (frequencies(RopeScaling::None), rope.frequencies());
        assert_eq!(scaled[0], plain[0]);
        assert!(scaled[1..].iter().zip(&plain[1..]).all(|(s, p)| (s - p / 4.0).abs() < 1e-9));
        assert!((rope.attention_factor() - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn longrope_is_that_of_short_texts_and_ends_with_them() {
        let text = r#"{"original_max_position_embeddings": 32, "partial_rotary_factor": 0.25,
            "rope_scaling": {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}}"#;
        let resolved = parsed(Family::Phi3, text).unwrap();
        assert_eq!((resolved.limit, resolved.full.dims), (Some(32), 4));
        assert_eq!(resolved.full.frequencies(), [1.0, 0.005]);
        // The root of 1 + ln 2 / ln 32.
        assert!((resolved.full.attention_factor() - 1.2f32.sqrt()).abs() < 1e-6);
        let short = text.replace("[3.0, 4.0]", "[3.0]");
        assert!(parsed(Family::Phi3, &short).unwrap_err().contains("long_factor"));
    }

    #[test]
    fn both_spellings_resolve_alike() {
        let parsed = |text: &str| parsed(Family::Llama, text);
        let old = parsed(r#"{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}"#);
        let new = parsed(r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}"#);
        assert_eq!(old.unwrap(), new.unwrap());
        assert!(parsed(r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8}}"#).unwrap_err().contains("low_freq_factor"));
        let equal = r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
            "original_max_position_embeddings": 32}}"#;
        assert!(parsed(equal).unwrap_err().contains("high_freq_factor"));
        // Dynamic scaling has no effect up to the context's length.
        let dynamic = parsed(r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}"#).unwrap();
        assert_eq!(dynamic.full.scaling, RopeScaling::None);
    }

    #[test]
    fn second_names_pass_where_they_say_the_same() {
        for (family, text) in [
            (Family::GptNeoX, r#"{"rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rotary_emb_base": 5e4, "rope_theta": 5e4}"#),
            (Family::GptNeoX, r#"{"partial_rotary_factor": 0.25, "rope_theta": 10000}"#),
            (Family::GptNeoX, r#"{"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}}"#),
            (Family::StableLm, r#"{"partial_rotary_factor": 0.5, "rope_pct": 0.5}"#),
            (Family::Llama, r#"{"rope_theta": 5e5, "rotary_emb_base": 5e5}"#),
        ] {
            let config = ConfigObject::parse(text).unwrap();
            resolve(&config, &RopeContext { family, head_dim: 16, max_positions: 64 }).unwrap();
            assert_eq!(config.unread().next(), None, "{text}");
        }
    }

    #[test]
    fn layers_with_windows_may_have_a_base_of_their_own() {
        let old = r#"{"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#;
        let new = r#"{"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}}"#;
        let (old, new) = (parsed(Family::Gemma3, old).unwrap(), parsed(Family::Gemma3, new).unwrap());
        assert_eq!(old, new);
        assert_eq!(old.full.scaling, RopeScaling::Linear { factor: 8.0 });
        assert_eq!(old.sliding, Some(Rope { theta: 2e4, scaling: RopeScaling::None, dims: 16 }));
    }

    #[test]
    fn what_contradicts_itself_or_is_not_known_is_refused() {
        for (family, text, named) in [
            (
                Family::Llama,
                r#"{"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}}"#,
                "rope_scaling",
            ),
            (Family::Llama, r#"{"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}"#, "rope_theta"),
            (Family::Llama, r#"{"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}"#, "mrope_section"),
            (Family::Llama, r#"{"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}"#, "partial_rotary_factor"),
            (Family::GptNeoX, r#"{"rotary_pct": 0.01}"#, "partial_rotary_factor"),
            (Family::GptNeoX, r#"{"rotary_pct": 0.5, "partial_rotary_factor": 0.25}"#, "rotary_pct"),
            (Family::GptNeoX, r#"{"rotary_emb_base": 1e4, "rope_theta": 5e4}"#, "rotary_emb_base"),
            // transformers takes 1e4 and a quarter.
            (Family::GptNeoX, r#"{"rope_theta": 5e4}"#, "rotary_emb_base"),
            (Family::GptNeoX, r#"{"partial_rotary_factor": 0.5}"#, "rotary_pct"),
            (Family::StableLm, r#"{"rope_pct": 0.5}"#, "rope_pct"),
            (Family::Gemma3, r#"{"rope_parameters": {"rope_theta": 1e4}}"#, "rope_theta"),
            (Family::Olmo3, r#"{"rope_theta": 1e4}"#, "rope_theta"),
            (Family::Llama, r#"{"rope_scaling": {"type": "yarn"}}"#, "factor"),
        ] {
            let error = parsed(family, text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(parsed(Family::Llama, r#"{"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {}}"#).is_ok());
    }

    #[test]
    fn a_fixed_alpha_stretches_the_base_and_half_of_a_glm_is_rotated() {
        let scaled = r#"{"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32}}"#;
        let rope = parsed(Family::HunyuanV1Dense, scaled).unwrap().full;
        assert!((rope.theta - 1e4 * 50f64.powf(16.0 / 14.0)).abs() < 1e-6 && rope.scaling == RopeScaling::None);
        let plain = scaled.replace("50.0", "0").replace(", \"beta_fast\": 32", "");
        assert_eq!(parsed(Family::HunyuanV1Dense, &plain).unwrap().full.theta, 1e4);
        assert!(parsed(Family::HunyuanV1Dense, &scaled.replace("50.0", "-2")).unwrap_err().contains("alpha"));
        assert!(parsed(Family::Llama, scaled).unwrap_err().contains("alpha"));
        assert_eq!(parsed(Family::Glm4, "{}").unwrap().full.dims, 8);
        assert_eq!(parsed(Family::Glm4, r#"{"partial_rotary_factor": 0.25}"#).unwrap().full.dims, 4);
    }
}
