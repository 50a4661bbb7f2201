"""The public surface: what is exported is importable, documented and typed."""

from __future__ import annotations

import rl_training
from rl_training import algorithms, api, models
from rl_training.experiment.registry import algorithm_class, algorithm_names

SHORT_NAMES = [algorithm_class(name).name() for name in algorithm_names()]
PROMISED = {
    rl_training: (
        *SHORT_NAMES,
        *("ManagedAlgorithm", "TrainConfig", "load", "learn_seeds", "resume_seeds", "register"),
        *("Callback", "EvalResult", "TrainResult", "SeedsResult", "RLTrainingError"),
        *("TransitionDataset", "load_transition_dataset"),
    ),
    api: (*SHORT_NAMES, "ManagedAlgorithm", "load", "learn_seeds", "resume_seeds"),
    algorithms: (
        *SHORT_NAMES,
        *(f"{name}Algorithm" for name in SHORT_NAMES),
        *("Algorithm", "Params", "Act"),
        *("awr_loss", "marwil_loss", "crr_loss", "iql_loss", "awac_loss", "cql_loss", "bc_loss"),
        *("dqn_loss", "quantile_huber_loss", "fqf_fraction_loss", "ppo_loss", "dynamics_loss"),
        *("gail_discriminator_loss", "gail_reward", "mopo_reward", "lambda_return", "kl_balance"),
    ),
    models: (
        *("MLPIQLModel", "MLPSACModel", "MLPMOPOEnsembleModel", "MLPFQFNetwork"),
        "MLPGAILDiscriminator",
    ),
}
"""Names that may not disappear: users and the pages of the documentation import them."""


def test_every_promised_name_is_exported() -> None:
    for module, names in PROMISED.items():
        missing = set(names) - set(module.__all__)
        assert not missing, f"{module.__name__} lacks {sorted(missing)}"


def test_everything_exported_is_importable_and_documented() -> None:
    for module in PROMISED:
        for name in module.__all__:
            thing = getattr(module, name)
            documented = thing.__doc__ or not isinstance(thing, type)  # an alias has none
            assert name == "__version__" or documented, f"{module.__name__}.{name}"


def test_both_namespaces_hold_the_same_managed_classes() -> None:
    for name in api.__all__:
        assert getattr(api, name) is getattr(rl_training, name), name


def test_unknown_names_are_attribute_errors() -> None:
    for module in (rl_training, algorithms):
        assert not hasattr(module, "NoSuchAlgorithm")
        assert dir(module)


def test_the_editor_sees_what_is_exported() -> None:
    """The TYPE_CHECKING imports and the lazy table say the same."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(rl_training))
    imported = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training.")
        for alias in node.names
    }
    assert imported == set(rl_training.__all__) - {"__version__"}
