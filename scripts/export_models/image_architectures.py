"""Networks of images: transformers, convolutions, and the parts of image generators."""

from __future__ import annotations

from .architecture import Architecture, Input

_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
_PATCHES = {**_SMALL, "image_size": 32, "patch_size": 8}
_FIXED = {"pixel_values": Input(("batch", 3, 32, 32))}
_OPEN = {"pixel_values": Input(("batch", 3, "height", "width"))}
_STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 48, 64]}
_TEXT_TOWER = {**_SMALL, "vocab_size": 200, "max_position_embeddings": 32}
_CAPTION = {"input_ids": Input(("batch", "sequence"), 200)}


def _seer(name, kind, config, inputs=None, tail="Model", **more):
    return Architecture(
        name, f"transformers:{kind}{tail}", inputs or _FIXED, config,
        f"transformers:{kind.removesuffix('Vision').removesuffix('Text')}Config"
        if not kind.endswith(("Vision", "Text")) else f"transformers:{kind}Config", **more,
    )  # fmt: skip


def _torchvision(name, function, inputs=None, **config):
    return Architecture(
        name, f"torchvision.models:{function}", inputs or {"image": _OPEN["pixel_values"]},
        {"weights": None, **config}, takes_names=False,
    )  # fmt: skip


def _timm(name, function, inputs=None, **config):
    return Architecture(
        name, "timm:create_model", inputs or {"image": Input(("batch", 3, 64, 64))},
        {"model_name": function, "pretrained": False, **config}, takes_names=False,
    )  # fmt: skip


IMAGES = (
    _seer("vit", "ViT", _PATCHES),
    _seer("deit", "DeiT", _PATCHES),
    _seer("beit", "Beit", {**_PATCHES, "use_relative_position_bias": True}),
    _seer("swin", "Swin", {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2],
          "num_heads": [2, 4], "window_size": 4}, {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("swinv2", "Swinv2", {"image_size": 64, "patch_size": 4, "embed_dim": 32,
          "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
          {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("dinov2", "Dinov2", {**_SMALL, "image_size": 56, "patch_size": 14, "mlp_ratio": 2},
          {"pixel_values": Input(("batch", 3, "height", "width"))}),
    _seer("dinov3-vit", "DINOv3ViT", _PATCHES),
    _seer("convnext", "ConvNext", _STAGES, _OPEN),
    _seer("convnextv2", "ConvNextV2", _STAGES, _OPEN),
    _seer("segformer", "Segformer", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64],
          "num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 32}, _OPEN,
          "ForSemanticSegmentation"),
    _seer("pvt", "Pvt", {"image_size": 64, "depths": [1, 1, 1, 1],
          "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
          {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("mobilevit", "MobileViT", {"image_size": 64, "hidden_sizes": [32, 48, 64],
          "neck_hidden_sizes": [16, 16, 24, 32, 48, 64, 96], "num_attention_heads": 2},
          {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("levit", "Levit", {"image_size": 64, "hidden_sizes": [32, 48, 64],
          "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
          {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("poolformer", "PoolFormer", {"depths": [1, 1, 1, 1],
          "hidden_sizes": [16, 32, 48, 64]}, _OPEN),
    _seer("clip-vision", "CLIPVision", _PATCHES),
    _seer("clip-text", "CLIPText", {**_TEXT_TOWER, "eos_token_id": 199}, _CAPTION),
    _seer("siglip-vision", "SiglipVision", _PATCHES),
    _seer("siglip-text", "SiglipText", _TEXT_TOWER, _CAPTION),
    _seer("sam-vision", "SamVision", {**_SMALL, "image_size": 64, "patch_size": 8,
          "mlp_dim": 128, "output_channels": 32, "window_size": 4, "global_attn_indexes": [1]},
          {"pixel_values": Input(("batch", 3, 64, 64))}),
    _seer("dpt", "DPT", {**_PATCHES, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
          "neck_hidden_sizes": [16, 16, 32, 32], "fusion_hidden_size": 32}, None,
          "ForDepthEstimation"),
    _seer("yolos", "Yolos", {**_SMALL, "image_size": [32, 48], "patch_size": 8,
          "num_detection_tokens": 8}, {"pixel_values": Input(("batch", 3, 32, 48))},
          "ForObjectDetection"),
    _seer("detr", "Detr", {"use_pretrained_backbone": False, "d_model": 64, "encoder_layers": 1,
          "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
          "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_queries": 8,
          "use_timm_backbone": False, "backbone": None, "backbone_config": {
          "": "transformers:ResNetConfig", "embedding_size": 16,
          "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "layer_type": "basic",
          "out_features": ["stage4"]}}, {"pixel_values": Input(("batch", 3, 64, 64))},
          "ForObjectDetection"),
    _torchvision("resnet18", "resnet18"),
    _torchvision("resnext", "resnext50_32x4d"),
    _torchvision("regnet", "regnet_y_400mf"),
    _torchvision("mobilenet-v2", "mobilenet_v2", width_mult=0.5),
    _torchvision("mobilenet-v3", "mobilenet_v3_small"),
    _torchvision("efficientnet", "efficientnet_b0"),
    _torchvision("densenet", "densenet121"),
    _torchvision("shufflenet", "shufflenet_v2_x0_5"),
    _torchvision("squeezenet", "squeezenet1_1"),
    _torchvision("mnasnet", "mnasnet0_5"),
    _torchvision("vgg11", "vgg11_bn", {"image": Input(("batch", 3, 64, 64))}, num_classes=10),
    _torchvision("googlenet", "googlenet", init_weights=False),
    Architecture("deeplab", "torchvision.models.segmentation:deeplabv3_mobilenet_v3_large",
                 {"image": _OPEN["pixel_values"]}, {"weights": None, "weights_backbone": None},
                 takes_names=False),
    Architecture("lraspp", "torchvision.models.segmentation:lraspp_mobilenet_v3_large",
                 {"image": _OPEN["pixel_values"]}, {"weights": None, "weights_backbone": None},
                 takes_names=False),
    _timm("ghostnet", "ghostnet_050"),
    _timm("repvgg", "repvgg_a0"),
    _timm("hrnet", "hrnet_w18_small"),
    _timm("coat-lite", "coat_lite_tiny", img_size=64),
    _timm("efficientformer", "efficientformer_l1", {"image": Input(("batch", 3, 224, 224))}),
)  # fmt: skip

_LATENT = Input(("batch", 4, "latent_height", "latent_width"))
_STEP = {"sample": _LATENT, "timestep": Input(("batch",)),
         "encoder_hidden_states": Input(("batch", 7, 32))}  # fmt: skip
_TUPLE = {"return_dict": False}

GENERATORS = (
    Architecture("sd-unet", "diffusers:UNet2DConditionModel", _STEP, {
        "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 4,
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "norm_num_groups": 8,
        }, call=_TUPLE),
    Architecture("vae-decoder", "diffusers:AutoencoderKL", {"z": _LATENT}, {
        "block_out_channels": (32, 64), "norm_num_groups": 8, "latent_channels": 4,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2}, call=_TUPLE, method="decode"),
    Architecture("vae-encoder", "diffusers:AutoencoderKL",
        {"x": Input(("batch", 3, "height", "width"))}, {
        "block_out_channels": (32, 64), "norm_num_groups": 8, "latent_channels": 4,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2}, method="_encode"),
    Architecture("dit", "diffusers:DiTTransformer2DModel", {
        "hidden_states": Input(("batch", 4, 16, 16)), "timestep": Input(("batch",), 100),
        "class_labels": Input(("batch",), 10)}, {
        "num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16,
        "patch_size": 2, "in_channels": 4, "num_embeds_ada_norm": 10}, call=_TUPLE),
    Architecture("flux", "diffusers:FluxTransformer2DModel", {
        "hidden_states": Input(("batch", "image_tokens", 16)),
        "encoder_hidden_states": Input(("batch", "sequence", 32)),
        "pooled_projections": Input(("batch", 32)), "timestep": Input(("batch",)),
        "img_ids": Input(("image_tokens", 3)), "txt_ids": Input(("sequence", 3))}, {
        "patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
        "attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 32,
        "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)}, call=_TUPLE),
    Architecture("sd3", "diffusers:SD3Transformer2DModel", {
        "hidden_states": Input(("batch", 4, 16, 16)),
        "encoder_hidden_states": Input(("batch", "sequence", 32)),
        "pooled_projections": Input(("batch", 64)), "timestep": Input(("batch",))}, {
        "sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 32,
        "caption_projection_dim": 64, "pooled_projection_dim": 64, "out_channels": 4},
        call=_TUPLE),
    Architecture("pixart", "diffusers:PixArtTransformer2DModel", {
        "hidden_states": Input(("batch", 4, 16, 16)),
        "encoder_hidden_states": Input(("batch", "sequence", 32)),
        "timestep": Input(("batch",))}, {
        "num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16,
        "patch_size": 2, "in_channels": 4, "out_channels": 8, "cross_attention_dim": 64,
        "caption_channels": 32, "use_additional_conditions": False},
        call={**_TUPLE, "added_cond_kwargs": {}}),
)  # fmt: skip
