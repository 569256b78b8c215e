"""Context models: the same bits in a fresh process, without the model; and bad ones."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.context_models import ContextModel, compile_model
from onnxruntime_ep_tenon.inputs import make_inputs
from onnxruntime_ep_tenon.models import attention, decoder, encoder, mlp
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin
