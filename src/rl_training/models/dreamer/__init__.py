"""The networks of a world model: encoders and decoders, the recurrent state, and heads.

Hafner, Pasukonis, Ba and Lillicrap 2023, arXiv:2301.04104, in the form of the authors' current
code: block-GRU, RMS normalisation, categorical latents, two-hot heads.
"""

from rl_training.models.dreamer.coders import PixelDecoder as PixelDecoder
from rl_training.models.dreamer.coders import PixelEncoder as PixelEncoder
from rl_training.models.dreamer.coders import VectorDecoder as VectorDecoder
from rl_training.models.dreamer.coders import VectorEncoder as VectorEncoder
from rl_training.models.dreamer.coders import image_stages as image_stages
from rl_training.models.dreamer.coders import symexp as symexp
from rl_training.models.dreamer.coders import symlog as symlog
from rl_training.models.dreamer.heads import BINS as BINS
from rl_training.models.dreamer.heads import ImaginedPolicy as ImaginedPolicy
from rl_training.models.dreamer.heads import TwoHotHead as TwoHotHead
from rl_training.models.dreamer.heads import two_hot as two_hot
from rl_training.models.dreamer.heads import two_hot_bins as two_hot_bins
from rl_training.models.dreamer.latents import one_hot as one_hot
from rl_training.models.dreamer.latents import sample_one_hot as sample_one_hot
from rl_training.models.dreamer.layers import SIZES as SIZES
from rl_training.models.dreamer.layers import Dense as Dense
from rl_training.models.dreamer.layers import DreamerSize as DreamerSize
from rl_training.models.dreamer.layers import Head as Head
from rl_training.models.dreamer.layers import in_bfloat16 as in_bfloat16
from rl_training.models.dreamer.layers import product_weights as product_weights
from rl_training.models.dreamer.rssm import RSSM as RSSM
from rl_training.models.dreamer.rssm import LatentState as LatentState
from rl_training.models.dreamer.rssm import exponential_noise as exponential_noise
from rl_training.models.dreamer.rssm import mask_state as mask_state
from rl_training.models.dreamer.scan import PLAIN as PLAIN
from rl_training.models.dreamer.scan import CellWeights as CellWeights
from rl_training.models.dreamer.scan import ChainInputs as ChainInputs
from rl_training.models.dreamer.scan import Kernels as Kernels
from rl_training.models.dreamer.sight import ObservationDecoder as ObservationDecoder
from rl_training.models.dreamer.sight import ObservationEncoder as ObservationEncoder
from rl_training.models.dreamer.sight import Sight as Sight
