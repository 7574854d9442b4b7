"""The house: which module may import which, the length of a function, the public names."""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import relock

SOURCE = Path(relock.__file__).parent
TESTS = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 50  # without its docstring
ROOM_LINES_MAX = 450
PLUGIN = SOURCE.parent / "_relock_pytest.py"  # its docstring says why it is beside the package
MODULES = [*sorted(SOURCE.rglob("*.py")), PLUGIN]

# The storeys, from the ground: a module imports only from its own storey and those below.
STOREYS = [
    (
        "_caches",
        "_decorators",
        "_errors",
        "_options",
        "_signatures",
        "_keys",
        "_owner",
        "_events",
        "_synchronized",
        "_urls",
        "_replies",
    ),
    ("_scripts",),
    ("_core",),
    ("_runtime",),
    ("_doctor",),
    ("_elections", "_holding", "_holding_all", "_latches", "_names", "_permits", "_rings", "_statistics"),
    ("lock",),
    ("aio_lock", "election", "latch", "multi_lock", "rwlock", "semaphore"),
    ("client",),
    ("aio_election", "aio_latch", "aio_multi_lock", "aio_rwlock", "aio_semaphore"),
    ("aio_client",),
    ("_servers",),
    ("_metrics",),
    ("cli", "history", "otel", "prometheus", "testing", "_relock_pytest", "__init__", "__main__"),
]
# Modules that only some rooms may import.
RESERVED = {
    "opentelemetry": ("otel",),
    "prometheus_client": ("prometheus",),
    "redis": ("_runtime", "_doctor", "client", "testing"),
    "threading": ("_runtime", "_owner", "lock", "election", "cli"),
    "socket": ("_options", "_runtime", "_servers", "cli"),
    "select": ("_runtime", "cli"),
    "hiredis": ("_runtime", "testing", "cli"),
    "time": ("_runtime", "_doctor", "_servers", "cli", "otel"),
    "random": ("_runtime", "cli", "testing"),
    "asyncio": ("_owner", "_runtime", "aio_lock", "aio_client", "aio_election", "cli", "testing"),
}


def for_each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a check of each module: it takes longer to collect a test than to play one of these."""

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    error.add_note(f"in {path}")
                    raise

        test.__doc__ = check.__doc__
        return test

    return decorate


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(SOURCE.parent if path == PLUGIN else SOURCE).parts[0].removesuffix(".py")


def storey(name: str) -> int:
    return next(floor for floor, rooms in enumerate(STOREYS) if name in rooms)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@for_each(MODULES)
def test_a_module_imports_only_from_its_storey_and_below(path: Path) -> None:
    own = storey(room(path))
    for name in imports(path):
        if name.startswith("relock."):
            assert storey(name.split(".")[1]) <= own, f"{path} imports {name}"


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def needs(path: Path) -> set[str]:
    """Return the modules of relock that a module imports, also those that only a type checker imports."""
    names = {dotted(other) for other in MODULES}
    return {
        name
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if name in names
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Readers would have to know all modules of a circle to understand one."""
    left = {dotted(path): needs(path) for path in MODULES if path.name != "__init__.py"}
    while left:
        free = [name for name, needed in left.items() if not needed & left.keys()]
        assert free, f"a circle: {sorted(left)}"
        for name in free:
            del left[name]


SIMULATOR = [path for path in sorted((TESTS / "sim").glob("*.py")) if not path.name.startswith("test_")]


@for_each([*MODULES, *SIMULATOR])
def test_a_room_can_be_read_at_once(path: Path) -> None:
    too_long = {SOURCE / "lock.py", TESTS / "sim" / "bugs.py"}  # the door, which has long docstrings, and a table
    assert path in too_long or len(path.read_text().splitlines()) <= ROOM_LINES_MAX


# The rooms of the runtime, from the ground.
RUNTIME_FLOORS = [
    ("live_set",),
    ("net",),
    ("platform",),
    ("wait_queue",),
    ("service",),
    ("masters",),
    ("wakeups",),
    ("driver",),
    ("background",),
    ("machine",),
    ("session",),
    ("aio",),
]


@for_each(sorted((SOURCE / "_runtime").rglob("*.py")))
def test_no_room_of_the_runtime_imports_from_one_above(path: Path) -> None:
    def floor(parts: tuple[str, ...]) -> int:
        return next(floor for floor, rooms in enumerate(RUNTIME_FLOORS) if parts[0].removesuffix(".py") in rooms)

    own = path.relative_to(SOURCE / "_runtime").parts
    if own == ("__init__.py",):
        return
    for name in needs(path):
        if name.startswith("relock._runtime."):
            assert floor(tuple(name.split(".")[2:])) <= floor(own), f"{path} imports {name}"


@for_each(MODULES)
def test_what_is_in_the_wheel_needs_nothing_of_the_tests(path: Path) -> None:
    """Tests' modules can be imported only where tests run."""
    rooms = {folder.name for folder in TESTS.iterdir()}
    assert not {name.split(".")[0] for name in imports(path)} & rooms


@for_each(MODULES)
def test_sockets_threads_and_clocks_stay_in_their_rooms(path: Path) -> None:
    for name in imports(path):
        rooms = RESERVED.get(name.split(".")[0])
        assert rooms is None or room(path) in rooms, f"{path} imports {name}"


def test_the_core_reads_no_clock_and_throws_no_dice() -> None:
    for path in (SOURCE / "_core").rglob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        own = {"relock", "attrs"}
        assert roots <= own | {"abc", "collections", "functools", "itertools", "math", "sys", "typing"}, path


@for_each(MODULES)
def test_caches_are_those_that_the_tests_can_make_small(path: Path) -> None:
    """Other caches would keep their size in a test with the smallest caches. Scripts are read once, for good."""
    remembers = {
        name
        for node in ast.walk(parsed(path))
        for name in ast.unparse(node).replace(",", " ").replace(".", " ").split()
        if isinstance(node, ast.ImportFrom | ast.Attribute) and name in ("cache", "lru_cache")
    }
    allowed = {"cache"} if path.stem == "_scripts" else set()
    assert room(path) == "testing" or remembers == allowed


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


@for_each(MODULES)
def test_functions_are_short(path: Path) -> None:
    long = {f.name: length(f) for f in functions(path) if length(f) > FUNCTION_LINES_MAX}
    assert not long


def is_overload(function: ast.FunctionDef) -> bool:
    """Return whether this is one of a function's types; the function itself follows it."""
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


@for_each(MODULES)
def test_what_is_public_has_a_docstring(path: Path) -> None:
    tree = parsed(path)
    if path.name != "__main__.py":
        assert ast.get_docstring(tree), path
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}: {node.name}"
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and not is_overload(member):
                    assert ast.get_docstring(member), f"{path}: {node.name}.{member.name}"


def test_the_public_names() -> None:
    assert sorted(relock.__all__) == relock.__all__
    assert all(hasattr(relock, name) for name in relock.__all__)  # imports those that are imported when first used
    exported = {name for name, value in vars(relock).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert exported == set(relock.__all__)


def test_the_package_is_typed_and_names_its_version() -> None:
    assert (SOURCE / "py.typed").exists()
    assert relock.__version__.count(".") == 2


TELLS = {"debug", "info", "warning", "error", "exception", "critical", "log", "handle"}


@for_each([path for path in MODULES if room(path) == "_runtime"])
def test_what_a_user_can_block_is_called_by_the_callback_queues_alone(path: Path) -> None:
    """A handler that hangs must keep no renewal, no undo and no waiter."""
    if path.stem == "telling":
        return
    called = {ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}
    assert not {name for name in called if name.startswith("warnings.")}
    assert not {name for name in called if "logger" in name.rpartition(".")[0] and name.rpartition(".")[2] in TELLS}
    assert not {name for name in called if name.rpartition(".")[2] in ("on_lost", "on_event", "callback")}


@for_each([path for path in MODULES if room(path) == "_runtime"])
def test_the_runtime_waits_and_draws_only_through_its_platform(path: Path) -> None:
    """Simulations would otherwise not control the whole run."""
    if path.stem == "platform":
        return
    made = {ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}
    assert not {"SimpleQueue", "threading.Thread", "threading.Event", "threading.RLock", "open_channel"} & made
    assert not any(name.startswith(("time.", "random.", "os.urandom")) for name in made)
