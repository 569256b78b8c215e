"""Quantises a sentence encoder to NVFP4 and asks it which sentences are alike.

python examples/python/sentence_similarity.py
"""

import tempfile
from pathlib import Path

import onnx
import onnxruntime_ep_tenon as tenon
from onnxruntime_ep_tenon.models import encoder, tokenizer
from onnxruntime_ep_tenon.models.quantize import quantize_file

SENTENCES = [
    "How do I reset my password?",
    "I forgot the password of my account.",
    "The train to Berlin leaves at noon.",
]

shape = encoder.EncoderShape()
folder = encoder.find_weights_folder()
if folder is None:
    print("no trained weights are installed: seeded ones stand in, the numbers mean nothing")
with tempfile.TemporaryDirectory() as work:
    plain, packed = Path(work) / "encoder.onnx", Path(work) / "encoder.nvfp4.onnx"
    onnx.save(encoder.build_encoder(encoder.load_weights(folder, shape)), plain)
    report = quantize_file(plain, packed, "nvfp4")
    print(f"{report.bytes_before / 2**20:.0f} MiB became {report.bytes_after / 2**20:.0f} MiB")
    session = tenon.create_session(packed)

tokens = tokenizer.tokenize(tokenizer.load_tokenizer(folder, shape.vocabulary), SENTENCES)
(vectors,) = session.run(None, tokens)
for i, first in enumerate(SENTENCES):
    for j in range(i):
        print(f"{vectors[i] @ vectors[j]:+.3f}  {first}  |  {SENTENCES[j]}")
