//! The names of the families' tensors.

/// Names of a family's tensors, without `.weight` and `.bias`. Names within a layer follow its number.
#[derive(Debug)]
pub(super) struct TensorNames {
    pub embedding: &'static str,
    /// The position embedding, if positions are learned.
    pub positions: Option<&'static str>,
    pub layers: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    pub attention: &'static AttentionNames,
    /// Names of recurrent layers' parameters in place of attention's, if the family has such layers.
    pub recurrent: Option<&'static RecurrentNames>,
    /// Gate and up projections, one that joins them, or the only one.
    pub mlp: &'static [&'static str],
    pub down: &'static str,
    /// Names of experts' parameters, if the family has experts.
    pub experts: Option<&'static ExpertNames>,
    /// Norms before and after attention, and before and after the MLP.
    pub norms: [&'static str; 4],
    /// What differs in files.
    pub in_files: FileForm,
}

/// How a model's files differ from memory. An adapter's files don't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileForm {
    /// In nothing.
    Same,
    /// The matrices of layers are transposed, `[in, out]`.
    Turned,
    /// Names begin otherwise: in memory, and in files.
    Renamed([&'static str; 2]),
}

/// Names of a layer's attention.
#[derive(Debug)]
pub(super) struct AttentionNames {
    /// Query, key and value projections, or one that joins them.
    pub qkv: &'static [&'static str],
    pub o: &'static str,
    /// The heads' attention sinks, if the family has any.
    pub sinks: Option<&'static str>,
    /// Norms of query and key heads, or of compressed queries, keys and values, if the family has them.
    pub norms: [&'static str; 2],
    /// Further names of attention with compressed keys and values. The projections above then compress both.
    pub latent: Option<&'static LatentNames>,
}

/// Names of attention with compressed keys and values.
#[derive(Debug)]
pub(super) struct LatentNames {
    /// The projections of a layer's input if queries are not compressed.
    pub plain: &'static [&'static str],
    /// Projections of compressed queries, and of compressed keys and values.
    pub second: [&'static str; 2],
}

/// Names of a recurrent layer's parameters in place of attention.
#[derive(Debug)]
pub(super) struct RecurrentNames {
    /// Projections of the recurrence's inputs.
    pub inputs: &'static [&'static str],
    pub convolution: &'static str,
    /// Parameters of a gated delta network or a state space. `None` for other recurrences.
    pub network: Option<NetworkNames>,
    pub output: &'static str,
    /// The output projection of a recurrence beside attention. The projections above are then those of attention, too.
    pub beside: Option<&'static str>,
}

/// Names of the parameters of a gated delta network or a state space.
#[derive(Debug)]
pub(super) struct NetworkNames {
    pub dt: &'static str,
    pub a_log: &'static str,
    /// `D`, if the family has it.
    pub skip: Option<&'static str>,
    /// The norm, with `.weight`.
    pub norm: &'static str,
}

impl TensorNames {
    /// Returns the name in memory of a tensor in files.
    pub fn in_memory(&self, name: &str) -> String {
        match self.in_files {
            FileForm::Renamed([own, start]) => {
                name.strip_prefix(start).map_or_else(|| name.to_owned(), |rest| format!("{own}{rest}"))
            }
            _ => name.to_owned(),
        }
    }

    /// Returns the name in files of a tensor.
    pub fn to_file(&self, name: String) -> String {
        match self.in_files {
            FileForm::Renamed([own, start]) => name.strip_prefix(own).map(|rest| format!("{start}{rest}")).unwrap_or(name),
            _ => name,
        }
    }

    /// Returns the names of the projections before attention, or before a recurrence.
    pub fn inputs(&self, recurrent: bool) -> &'static [&'static str] {
        self.recurrent.filter(|_| recurrent).map_or(self.attention.qkv, |names| names.inputs)
    }

    /// Returns the names of the projections before attention whose keys and values are compressed, and queries too or not.
    pub fn latent_inputs(&self, queries: bool) -> &'static [&'static str] {
        self.attention.latent.filter(|_| !queries).map_or(self.attention.qkv, |names| names.plain)
    }

    /// Returns the name of the projection after attention, or after a recurrence.
    pub fn mixed(&self, recurrent: bool) -> &'static str {
        self.recurrent.filter(|_| recurrent).map_or(self.attention.o, |names| names.output)
    }

    /// Returns the names of the projections after attention or a recurrence, or after both side by side.
    pub fn outputs(&self, recurrent: bool) -> impl Iterator<Item = &'static str> + use<> {
        let beside = self.recurrent.filter(|_| recurrent).and_then(|names| names.beside);
        std::iter::once(self.mixed(recurrent)).chain(beside)
    }

    /// Returns the names of the shared MLP in layers with experts, if they differ from those of other layers' MLPs.
    pub fn shared(&self) -> Option<&'static SharedNames> {
        self.experts.and_then(|experts| experts.shared)
    }

    /// Returns the names of an MLP's gate and up projections and of its down projection, in a layer with or without experts.
    pub fn unit(&self, sparse: bool) -> (&'static [&'static str], &'static str) {
        self.shared().filter(|_| sparse).map_or((self.mlp, self.down), |shared| (shared.wide, shared.down))
    }
}

/// Names of the shared MLP, which all tokens pass through in layers with experts.
#[derive(Debug)]
pub(super) struct SharedNames {
    /// Gate and up projections.
    pub wide: &'static [&'static str],
    pub down: &'static str,
    /// The map to the gate of the MLP's output, if it has one.
    pub gate: Option<&'static str>,
}

/// Names of a layer's experts.
#[derive(Debug)]
pub(super) struct ExpertNames {
    /// The router, and its name in files.
    pub router: [&'static str; 2],
    /// Whether peft can adapt the router as a linear layer, so that adapters on all linear layers apply to it.
    pub adapts_router: bool,
    /// All experts' gate and up projections.
    pub wide: &'static str,
    /// All experts' down projections.
    pub down: &'static str,
    /// The correction added to scores when choosing experts, if the family has one. It is not trained.
    pub correction: Option<&'static str>,
    /// Names of the shared MLP in layers with experts, if they differ from those of other layers' MLPs.
    pub shared: Option<&'static SharedNames>,
    /// Layout of the projections in files.
    pub in_files: ExpertFileLayout,
}

impl ExpertNames {
    /// Returns whether the experts' projections and the router have biases.
    pub fn have_biases(&self) -> bool {
        matches!(self.in_files, ExpertFileLayout::Crossed { alternating: true })
    }

    /// Returns whether files store the experts' matrices transposed.
    pub fn are_crossed(&self) -> bool {
        matches!(self.in_files, ExpertFileLayout::Crossed { .. })
    }

    /// Returns whether files store each expert separately.
    pub fn are_apart(&self) -> bool {
        matches!(self.in_files, ExpertFileLayout::Each(..))
    }
}

/// Layout of experts' projections in files.
#[derive(Debug)]
pub(super) enum ExpertFileLayout {
    /// Each expert separately, under its number: gate, up and down projection.
    Each(&'static str, [&'static str; 3]),
    /// Each expert separately, under its number, without a gate: up and down projection.
    EachUngated(&'static str, [&'static str; 2]),
    /// All together: gate and up, and down projections.
    Stacked([&'static str; 2]),
    /// All together under the names in memory.
    Together,
    /// All together under the names in memory, transposed.
    Crossed {
        /// Whether there are biases, and the rows of gate and up projections alternate.
        alternating: bool,
    },
}

const ATTENTION: AttentionNames = AttentionNames {
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    o: "self_attn.o_proj",
    sinks: None,
    norms: ["self_attn.q_norm", "self_attn.k_norm"],
    latent: None,
};

pub(super) const LLAMA: TensorNames = TensorNames {
    embedding: "model.embed_tokens",
    positions: None,
    layers: "model.layers",
    norm: "model.norm",
    head: "lm_head",
    attention: &ATTENTION,
    recurrent: None,
    mlp: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    experts: None,
    norms: ["input_layernorm", "", "post_attention_layernorm", ""],
    in_files: FileForm::Same,
};

/// Names with norms before and after attention and MLP.
pub(super) const GEMMA: TensorNames = TensorNames {
    norms: ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ..LLAMA
};

/// As Gemma, with experts beside the MLP if configured.
pub(super) const GEMMA4: TensorNames = TensorNames {
    experts: Some(&ExpertNames {
        router: ["router.proj", "router.proj"],
        adapts_router: true,
        wide: "experts.gate_up_proj",
        down: "experts.down_proj",
        correction: None,
        shared: None,
        in_files: ExpertFileLayout::Together,
    }),
    ..GEMMA
};

/// Names with norms only after attention and MLP.
pub(super) const OLMO: TensorNames =
    TensorNames { norms: ["", "post_attention_layernorm", "", "post_feedforward_layernorm"], ..LLAMA };

/// Names with one norm, before both attention and MLP.
pub(super) const COHERE: TensorNames = TensorNames { norms: ["input_layernorm", "", "", ""], ..LLAMA };

pub(super) const GLM: TensorNames = TensorNames {
    mlp: &["mlp.gate_up_proj"],
    norms: ["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"],
    ..LLAMA
};

pub(super) const GPT_OSS: TensorNames = TensorNames {
    attention: &AttentionNames { sinks: Some("self_attn.sinks"), ..ATTENTION },
    experts: Some(&ExpertNames {
        router: ["mlp.router", "mlp.router"],
        adapts_router: false,
        wide: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        correction: None,
        shared: None,
        in_files: ExpertFileLayout::Crossed { alternating: true },
    }),
    ..LLAMA
};

pub(super) const HUNYUAN: TensorNames = TensorNames {
    attention: &AttentionNames { norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"], ..ATTENTION },
    ..LLAMA
};

pub(super) const PHI: TensorNames =
    TensorNames { attention: &AttentionNames { qkv: &["self_attn.qkv_proj"], ..ATTENTION }, mlp: &["mlp.gate_up_proj"], ..LLAMA };

pub(super) const GPT2: TensorNames = TensorNames {
    embedding: "transformer.wte",
    positions: Some("transformer.wpe"),
    layers: "transformer.h",
    norm: "transformer.ln_f",
    head: "lm_head",
    attention: &AttentionNames { qkv: &["attn.c_attn"], o: "attn.c_proj", ..ATTENTION },
    mlp: &["mlp.c_fc"],
    down: "mlp.c_proj",
    norms: ["ln_1", "", "ln_2", ""],
    in_files: FileForm::Turned,
    ..LLAMA
};

pub(super) const NEOX: TensorNames = TensorNames {
    embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    attention: &AttentionNames { qkv: &["attention.query_key_value"], o: "attention.dense", ..ATTENTION },
    mlp: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

pub(super) const STARCODER: TensorNames = TensorNames { mlp: &["mlp.c_fc"], down: "mlp.c_proj", ..LLAMA };

const EXPERTS: ExpertNames = ExpertNames {
    router: ["mlp.gate", "mlp.gate"],
    adapts_router: false,
    wide: "mlp.experts.gate_up_proj",
    down: "mlp.experts.down_proj",
    correction: None,
    shared: None,
    in_files: ExpertFileLayout::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
};

pub(super) const QWEN_MOE: TensorNames = TensorNames { experts: Some(&EXPERTS), ..LLAMA };

const SHARED_QWEN: SharedNames = SharedNames {
    wide: &["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
    down: "mlp.shared_expert.down_proj",
    gate: Some("mlp.shared_expert_gate"),
};

pub(super) const QWEN2_MOE: TensorNames =
    TensorNames { experts: Some(&ExpertNames { shared: Some(&SHARED_QWEN), ..EXPERTS }), ..LLAMA };

const SHARED_GLM: SharedNames = SharedNames {
    wide: &["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"],
    down: "mlp.shared_experts.down_proj",
    gate: None,
};

pub(super) const GLM_MOE: TensorNames = TensorNames {
    experts: Some(&ExpertNames { correction: Some("mlp.gate.e_score_correction_bias"), shared: Some(&SHARED_GLM), ..EXPERTS }),
    ..LLAMA
};

pub(super) const DEEPSEEK_V3: TensorNames = TensorNames {
    attention: &AttentionNames {
        qkv: &["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"],
        norms: ["self_attn.q_a_layernorm", "self_attn.kv_a_layernorm"],
        latent: Some(&LatentNames {
            plain: &["self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"],
            second: ["self_attn.q_b_proj", "self_attn.kv_b_proj"],
        }),
        ..ATTENTION
    },
    ..GLM_MOE
};

pub(super) const DEEPSEEK_V2: TensorNames =
    TensorNames { experts: Some(&ExpertNames { shared: Some(&SHARED_GLM), ..EXPERTS }), ..DEEPSEEK_V3 };

pub(super) const LLAMA4: TensorNames = TensorNames {
    mlp: &["feed_forward.gate_proj", "feed_forward.up_proj"],
    down: "feed_forward.down_proj",
    experts: Some(&ExpertNames {
        router: ["feed_forward.router", "feed_forward.router"],
        adapts_router: false,
        wide: "feed_forward.experts.gate_up_proj",
        down: "feed_forward.experts.down_proj",
        correction: None,
        shared: Some(&SharedNames {
            wide: &["feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"],
            down: "feed_forward.shared_expert.down_proj",
            gate: None,
        }),
        in_files: ExpertFileLayout::Crossed { alternating: false },
    }),
    ..LLAMA
};

pub(super) const MIXTRAL: TensorNames = TensorNames {
    experts: Some(&ExpertNames {
        router: ["mlp.gate", "block_sparse_moe.gate"],
        adapts_router: false,
        wide: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        correction: None,
        shared: None,
        in_files: ExpertFileLayout::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
    }),
    ..LLAMA
};

/// Names for mixtures in which the MLP is shared by all tokens.
pub(super) const GRANITE_MOE: TensorNames = TensorNames {
    mlp: &["shared_mlp.input_linear"],
    down: "shared_mlp.output_linear",
    experts: Some(&ExpertNames {
        router: ["block_sparse_moe.router", "block_sparse_moe.router.layer"],
        adapts_router: false,
        wide: "block_sparse_moe.experts.gate_up_proj",
        down: "block_sparse_moe.experts.down_proj",
        correction: None,
        shared: None,
        in_files: ExpertFileLayout::Stacked(["block_sparse_moe.input_linear", "block_sparse_moe.output_linear"]),
    }),
    ..LLAMA
};

/// As Granite MoE, with state spaces in the place of attention in most layers.
pub(super) const GRANITE_HYBRID: TensorNames = TensorNames {
    recurrent: Some(&RecurrentNames {
        inputs: &["mamba.in_proj"],
        convolution: "mamba.conv1d",
        network: Some(NetworkNames {
            dt: "mamba.dt_bias",
            a_log: "mamba.A_log",
            skip: Some("mamba.D"),
            norm: "mamba.norm.weight",
        }),
        output: "mamba.out_proj",
        beside: None,
    }),
    ..GRANITE_MOE
};

const BOTH_INPUTS: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mamba.in_proj"];

/// Names of layers with attention and a state space.
pub(super) const FALCON_H1: TensorNames = TensorNames {
    norm: "model.final_layernorm",
    attention: &AttentionNames { qkv: BOTH_INPUTS, ..ATTENTION },
    recurrent: Some(&RecurrentNames {
        inputs: BOTH_INPUTS,
        convolution: "mamba.conv1d",
        network: Some(NetworkNames {
            dt: "mamba.dt_bias",
            a_log: "mamba.A_log",
            skip: Some("mamba.D"),
            norm: "mamba.norm.weight",
        }),
        output: "self_attn.o_proj",
        beside: Some("mamba.out_proj"),
    }),
    mlp: &["feed_forward.gate_proj", "feed_forward.up_proj"],
    down: "feed_forward.down_proj",
    norms: ["input_layernorm", "", "pre_ff_layernorm", ""],
    ..LLAMA
};

pub(super) const LFM2: TensorNames = TensorNames {
    norm: "model.embedding_norm",
    attention: &AttentionNames {
        o: "self_attn.out_proj",
        norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
        ..ATTENTION
    },
    recurrent: Some(&RecurrentNames {
        inputs: &["conv.in_proj"],
        convolution: "conv.conv",
        network: None,
        output: "conv.out_proj",
        beside: None,
    }),
    mlp: &["feed_forward.w1", "feed_forward.w3"],
    down: "feed_forward.w2",
    norms: ["operator_norm", "", "ffn_norm", ""],
    ..LLAMA
};

const DELTA_NETWORK: NetworkNames =
    NetworkNames { dt: "linear_attn.dt_bias", a_log: "linear_attn.A_log", skip: None, norm: "linear_attn.norm.weight" };

pub(super) const QWEN3_5: TensorNames = TensorNames {
    recurrent: Some(&RecurrentNames {
        inputs: &["linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"],
        convolution: "linear_attn.conv1d",
        network: Some(DELTA_NETWORK),
        output: "linear_attn.out_proj",
        beside: None,
    }),
    ..LLAMA
};

pub(super) const LFM2_MOE: TensorNames = TensorNames {
    experts: Some(&ExpertNames {
        router: ["feed_forward.gate", "feed_forward.gate"],
        adapts_router: false,
        wide: "feed_forward.experts.gate_up_proj",
        down: "feed_forward.experts.down_proj",
        correction: Some("feed_forward.expert_bias"),
        shared: None,
        in_files: ExpertFileLayout::Each("feed_forward.experts", ["w1", "w3", "w2"]),
    }),
    ..LFM2
};

pub(super) const QWEN3_5_MOE: TensorNames = TensorNames { experts: QWEN2_MOE.experts, ..QWEN3_5 };

/// As Qwen 3.5 MoE, with joined projections of the recurrence's inputs.
pub(super) const QWEN3_NEXT: TensorNames = TensorNames {
    recurrent: Some(&RecurrentNames {
        inputs: &["linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"],
        convolution: "linear_attn.conv1d",
        network: Some(DELTA_NETWORK),
        output: "linear_attn.out_proj",
        beside: None,
    }),
    ..QWEN3_5_MOE
};

/// Names of the maps to what experts read, and from what they write, if these are no hidden states.
pub(super) const LATENT_EXPERTS: [&str; 2] = ["mixer.fc1_latent_proj", "mixer.fc2_latent_proj"];

/// Names of layers of one part, which have the same name whatever the part is, and one norm.
pub(super) const NEMOTRON_H: TensorNames = TensorNames {
    embedding: "model.embeddings",
    norm: "model.norm_f",
    attention: &AttentionNames { qkv: &["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"], o: "mixer.o_proj", ..ATTENTION },
    recurrent: Some(&RecurrentNames {
        inputs: &["mixer.in_proj"],
        convolution: "mixer.conv1d",
        network: Some(NetworkNames {
            dt: "mixer.dt_bias",
            a_log: "mixer.A_log",
            skip: Some("mixer.D"),
            norm: "mixer.norm.weight",
        }),
        output: "mixer.out_proj",
        beside: None,
    }),
    mlp: &["mixer.up_proj"],
    down: "mixer.down_proj",
    experts: Some(&ExpertNames {
        router: ["mixer.gate", "mixer.gate"],
        adapts_router: false,
        wide: "mixer.experts.up_proj",
        down: "mixer.experts.down_proj",
        correction: Some("mixer.gate.e_score_correction_bias"),
        shared: Some(&SharedNames {
            wide: &["mixer.shared_experts.up_proj"],
            down: "mixer.shared_experts.down_proj",
            gate: None,
        }),
        in_files: ExpertFileLayout::EachUngated("mixer.experts", ["up_proj", "down_proj"]),
    }),
    norms: ["norm", "", "norm", ""],
    in_files: FileForm::Renamed(["model.", "backbone."]),
    ..LLAMA
};
