# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test docs lint generated bench test-versions fuzz kills soak clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train AWR on scripted data beside behaviour cloning (about 2 minutes)
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## run every test; four processes keep two cores busy, and neighbours share what they make
	$(BIN)/python -m pytest -n 4 --dist worksteal

docs: $(STAMP)  ## the documentation as a site in build/site, every link and anchor checked
	$(BIN)/python -m docs.build_site

lint: $(STAMP)  ## ruff and the strict type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

generated: $(STAMP)  ## types of all knobs for editors, tables of algorithms, the README's figure: after a change of an algorithm
	$(BIN)/python -m rl_training.api.stubs
	$(BIN)/python docs/write_tables.py
	$(BIN)/python docs/write_figures.py

bench: $(STAMP)  ## every benchmark behind benchmarks/RESULTS.md (about two hours)
	$(BIN)/python -m benchmarks.run

test-versions: $(STAMP)  ## a part of the tests with every Python found, the lowest and newest PyTorch and Gymnasium
	$(BIN)/python tests/versions.py

fuzz: $(STAMP)  ## 2,000 mutated configs, 500 damaged checkpoints, malformed data, misbehaving environments
	$(BIN)/python -m tests.fuzz

kills: $(STAMP)  ## 300 kills over all algorithms, resumed and compared bit for bit
	$(BIN)/python -m tests.reliability.kills --count 300

soak: $(STAMP)  ## ten hours in one process; memory, threads and open files must not grow
	$(BIN)/python -m tests.reliability.soak --minutes 600

clean:
	rm -rf $(VENV) build .venv-versions .venv-peers* .pytest_cache .mypy_cache .ruff_cache
