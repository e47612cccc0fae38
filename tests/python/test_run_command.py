"""``python -m customconv run``: a program is as with Python alone, and its convolutions routed."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from textwrap import dedent
from types import SimpleNamespace

import pytest

from customconv import run
from customconv.__main__ import main

RUN = [sys.executable, "-m", "customconv", "run"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a program into an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="program.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return name

    return write


def call(command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, start_new_session=True, **options
    )


def assert_same(*program, **options):
    """Runs a program by Python alone and by ``run``; nothing that it shows may differ."""
    plain = call([sys.executable, *program], **options)
    routed = call([*RUN, *program], **options)
    assert routed.stdout == plain.stdout
    assert routed.stderr == plain.stderr
    assert routed.returncode == plain.returncode
    return plain


FACTS = """\
import sys
for name in ("__name__", "__file__", "__spec__", "__package__", "__loader__", "__builtins__"):
    print(name, str(globals().get(name)).split(" at 0x")[0])
print(sorted(globals()))
print(sys.argv, sys.path, sys.flags, sys.executable, sys.orig_argv, sys.warnoptions)
print(sys.modules["__main__"].__dict__ is globals(), sys._getframe().f_back)
print(sorted(set(sys.modules) - {"sitecustomize"}))
"""
AS_MODULE = """\
import sys
print(__name__, __file__, __spec__.name, __package__, sys.argv, sys.path)
"""


@pytest.mark.parametrize("arguments", [[], ["--stats", "-m", "x", "--", "-h", ""]])
def test_a_script_finds_itself_as_with_python(write, arguments):
    assert "program.py" in assert_same(write(FACTS), *arguments).stdout


def test_a_script_in_another_folder(write):
    assert "'sub/program.py'" in assert_same(write(FACTS, "sub/program.py")).stdout


def test_a_script_after_two_dashes(write):
    assert assert_same("--", write(FACTS), "--", "a").returncode == 0


@pytest.mark.parametrize("arguments", [[], ["--stats", "-m", "x", "--", "-h", ""]])
@pytest.mark.parametrize("option", [["-m", "package.module"], ["-mpackage"]])
def test_a_module_finds_itself_as_with_python(write, option, arguments):
    write("", "package/__init__.py")
    write(AS_MODULE, "package/__main__.py")
    write(AS_MODULE, "package/module.py")
    assert "__main__" in assert_same(*option, *arguments).stdout


def test_a_folder_and_a_zip_file(write, tmp_path):
    write(AS_MODULE, "folder/__main__.py")
    assert "folder" in assert_same("folder", "a").stdout
    with zipfile.ZipFile(tmp_path / "zipped", "w") as archive:
        archive.write("folder/__main__.py", "__main__.py")
    assert "zipped" in assert_same("zipped", "a").stdout


def test_code_and_standard_input():
    assert assert_same("-c", "import sys; print(sys.argv, sys.path)", "-v").stdout.startswith(
        "['-c'"
    )
    assert assert_same("-", "a", input="import sys; print(sys.argv)").stdout == "['-', 'a']\n"


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        (["none.py"], 2, "can't open file"),
        (["-m", "no_such_module"], 1, "No module named no_such_module"),
        (["-m"], 2, "Argument expected for the -m option"),
        (["."], 1, "can't find '__main__' module"),
    ],
)
def test_a_program_that_is_not_there(tmp_path, program, code, words):
    result = assert_same(*program, cwd=tmp_path)
    assert result.returncode == code
    assert words in result.stderr


ENDS = {
    "the end of the file": ("", 0),
    "sys.exit()": ("import sys; sys.exit()", 0),
    "sys.exit(3)": ("import sys; sys.exit(3)", 3),
    "sys.exit(-1)": ("import sys; sys.exit(-1)", 255),
    "sys.exit(words)": ("import sys; sys.exit('it cannot')", 1),
    "os._exit": ("import os; os._exit(7)", 7),
    "a syntax error": ("def", 1),
    "an exception": (
        """
        def f():
            raise KeyError("x") from ValueError("y")
        try:
            f()
        finally:
            f()
        """,
        1,
    ),
    "an exception for the program's own hook": (
        """
        import sys, traceback
        def hook(type, value, trace):
            print("hook", type, value, len(traceback.extract_tb(trace)))
        sys.excepthook = hook
        1 / 0
        """,
        1,
    ),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "SIGTERM": ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "a closed pipe": (
        """
        import os
        read, write = os.pipe()
        os.close(read)
        os.write(write, b"x")
        """,
        1,
    ),
    "atexit and a thread that is still running": (
        """
        import atexit, sys, threading, time
        atexit.register(print, "at exit")
        def work():
            time.sleep(0.2)
            print("thread")
        threading.Thread(target=work).start()
        sys.exit(4)
        """,
        4,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_with_python(write, end):
    text, code = ENDS[end]
    result = assert_same(write(text))
    assert result.returncode == code
    assert "customconv" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handled", [False, True])
def test_signals_reach_the_program(write, number, handled):
    handler = f"signal.signal({int(number)}, lambda number, frame: sys.exit(number))"
    program = write(
        f"""
        import signal, sys, time
        {handler if handled else ""}
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    with subprocess.Popen(
        [*RUN, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # What runs in the background of a shell ignores SIGINT, and so would the program.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(60) == (number if handled else -number)


CLASSES = """
import multiprocessing, pickle, sys

class Point:
    def __eq__(self, other):
        return type(self) is type(other)

def work(queue):
    queue.put((Point(), __name__, sys.argv, sys.path))

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Point())) == Point()
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        point, *facts = queue.get(timeout=30)
        process.join()
        print(method, point == Point(), facts, process.exitcode)
"""


def test_pickle_and_multiprocessing_find_main(write):
    assert assert_same(write(CLASSES), "a").stdout.count("True") == 3
    assert assert_same("-m", write(CLASSES).removesuffix(".py"), "a").stdout.count("True") == 3


def test_python_gets_its_own_options(write):
    program = write("import sys; print(sys.flags, sys._xoptions, sys.warnoptions)")
    options = ["-OO", "-Xno_debug_ranges", "-W", "ignore::UserWarning", "-u"]
    plain = call([sys.executable, *options, program])
    routed = call([sys.executable, *options, *RUN[1:], program])
    assert routed.stdout == plain.stdout


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python -m customconv run x -O", []),
        ("python -mcustomconv run x", []),
        ("python -um customconv run x", ["-u"]),
        ("python -uBmcustomconv run -m x", ["-uB"]),
        ("python -X dev -Wd -u -m customconv", ["-X", "dev", "-Wd", "-u"]),
        (
            "python --check-hash-based-pycs never -uX dev -m customconv",
            ["--check-hash-based-pycs", "never", "-uX", "dev"],
        ),
        ("python -u program.py -m customconv", None),
        ("python -m pdb -m customconv run x", None),
        ("python -c customconv run x", None),
        ("python", None),
    ],
)
def test_options_of_python_are_told_from_the_rest(command, options):
    assert run.interpreter_options(command.split()) == options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "names no program"),
        (["--stats"], "names no program"),
        (["--stat", "x.py"], "unrecognized arguments: --stat"),
        (["-x", "x.py"], "unrecognized arguments: -x"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["run", *arguments])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert "usage: python -m customconv run [-h] [--stats]" in error
    assert words in error


def test_help(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["run", "--stats", "--help"])
    assert exit.value.code == 0
    assert "PYTHONPATH" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["ignore_environment", "no_site"])
def test_options_of_python_that_shut_it_out_are_refused(option, monkeypatch, capsys):
    flags = {"ignore_environment": 0, "no_site": 0, option: 1}
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**flags))
    with pytest.raises(SystemExit) as exit:
        main(["run", "program.py"])
    assert exit.value.code == 2
    assert "-I, -E and -S" in capsys.readouterr().err


@pytest.mark.parametrize("inherited", [None, "", "a:b", f"a:{run.STARTUP}:b"])
def test_the_rest_of_pythonpath_stays(inherited):
    env = run.environment({} if inherited is None else {"PYTHONPATH": inherited}, 1, False)
    rest = ":a:b" if inherited else ""
    assert env == {"PYTHONPATH": run.STARTUP + rest, "CUSTOMCONV_RUN": "1"}


def test_another_sitecustomize_runs_too(write, tmp_path, monkeypatch):
    write("import sys; sys.seen = __name__, __file__, sys.path[0]", "other/sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"), prepend=os.pathsep)
    program = write("import sys, sitecustomize; print(sys.seen, sitecustomize.__file__)")
    assert assert_same(program).stdout.count("other/sitecustomize.py") == 2


ENABLED = "import customconv; print(customconv.is_enabled())"
ROUTES = {
    "torch": f"import torch; {ENABLED}",
    "a part of torch": f"from torch.nn import functional; {ENABLED}",
    "customconv": ENABLED,
    "a search, then torch": f"""
        import importlib.util
        assert importlib.util.find_spec("torch") and importlib.util.find_spec("customconv")
        import torch
        {ENABLED}
        """,
    "torch in a thread": f"""
        import threading
        thread = threading.Thread(target=__import__, args=("torch",))
        thread.start()
        thread.join()
        {ENABLED}
        """,
}


@pytest.mark.parametrize("how", ROUTES)
def test_routing_is_on_however_torch_is_imported(write, how):
    result = call([*RUN, write(ROUTES[how])])
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_imports_leave_no_trace(write):
    program = write(
        """
        import sys
        import torch
        # Rules for DTensor wait for its import.
        finders = [each for each in sys.meta_path if "torch" in getattr(each, "then", "torch")]
        print(finders, vars(torch.__loader__), torch.__spec__, torch.__loader__.exec_module)
        """
    )
    plain, routed = (call([*command, program]).stdout for command in ([sys.executable], RUN))
    assert [line.split(" at 0x")[0] for line in routed.split(",")] == [
        line.split(" at 0x")[0] for line in plain.split(",")
    ]


def test_what_a_program_sets_before_it_imports_torch_counts(write):
    program = write(
        """
        import os
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        print(torch.get_num_threads())
        """
    )
    assert assert_same(program).stdout == "1\n"


def test_an_import_of_torch_that_fails_can_be_tried_again(write):
    write("raise OSError('first')", "bad/torch/__init__.py")
    program = write(
        f"""
        import sys
        sys.path.insert(0, "bad")
        try:
            import torch
        except OSError as error:
            print(error)
        sys.path.remove("bad")
        import torch
        {ENABLED}
        """
    )
    assert call([*RUN, program]).stdout == "first\nTrue\n"


CHILDREN = {
    "spawn": """
        import customconv
        import torch.multiprocessing as multiprocessing
        def work(rank):
            print(customconv.is_enabled())
        if __name__ == "__main__":
            multiprocessing.spawn(work)
        """,
    "forkserver": """
        import multiprocessing
        def work():
            import customconv
            print(customconv.is_enabled(), flush=True)
        if __name__ == "__main__":
            process = multiprocessing.get_context("forkserver").Process(target=work)
            process.start()
            process.join()
        """,
    "subprocess": f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import torch; {ENABLED}"], check=True)
        """,
}


@pytest.mark.parametrize("how", CHILDREN)
def test_children_are_routed(write, how):
    result = call([*RUN, write(CHILDREN[how])])
    assert (result.stdout, result.stderr) == ("True\n", "")


COUNTED = """
import torch
import customconv
x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
torch.ops.customconv.conv2d(x, w)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", -2)],
)
def test_stats_are_printed_at_any_end(write, end, code):
    result = call([*RUN, "--stats", write(COUNTED + end)])
    assert result.returncode == code
    assert result.stdout == ""
    _, heading, table = result.stderr.partition("customconv: convolutions computed\n")
    assert heading
    assert re.fullmatch(r"1  by PyTorch: .* on CUDA\n", table)


def test_stats_come_after_everything_else_that_a_program_does(write):
    program = write("import atexit, sys" + COUNTED + "atexit.register(sys.stderr.write, 'last\\n')")
    assert call([*RUN, "--stats", program]).stderr.startswith("last\ncustomconv: ")


ON_CPU = "import torch\ntorch.nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 3, 3))"


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", "customconv: torch was not imported\n"),
        (ON_CPU, "customconv: convolutions computed\nnone: .* on CUDA alone, and .*\n"),
    ],
)
def test_stats_without_a_convolution_say_why(write, text, table):
    assert re.fullmatch(table, call([*RUN, "--stats", write(text)]).stderr)


def test_no_stats_without_being_asked_for(write):
    assert call([*RUN, write(COUNTED)]).stderr == ""


FAMILY = """
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"])
    child.wait()
    print(child.pid, flush=True)
    subprocess.run([sys.executable, "-c", "import torch"])  # counts nothing
    if os.fork() == 0:
        sys.exit()  # counts nothing of its own
    os.wait()
"""


def test_stats_of_children(write):
    result = call([*RUN, "--stats", write("import os, subprocess, sys" + COUNTED + FAMILY)])
    child = result.stdout.strip()
    assert result.stderr.count("customconv") == 2
    assert result.stderr.startswith(f"process {child}: customconv: convolutions computed\n1  ")
    assert "\ncustomconv: convolutions computed\n1  " in result.stderr


BROKEN = "raise ImportError('it was built for another PyTorch', name='customconv._bind')"
MISSING = "raise ModuleNotFoundError(name='customconv')"


COUNTED_BY_MULTIPROCESSING = """
import multiprocessing
import torch
import customconv


def work():
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    torch.ops.customconv.conv2d(x, w)


if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=work)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_stats_of_processes_that_multiprocessing_starts(write, method):
    program = write(COUNTED_BY_MULTIPROCESSING.replace("{method}", method))
    result = call([*RUN, "--stats", program])
    assert result.returncode == 0
    assert result.stderr.count("1  by PyTorch: the tensors are not on CUDA") == 1


@pytest.mark.parametrize(("text", "said"), [(MISSING, False), (BROKEN, True)])
def test_a_child_that_cannot_be_routed_goes_on(write, tmp_path, text, said):
    write("", "other/torch.py")
    write(text, "other/customconv.py")
    env = run.environment({**os.environ, "PYTHONPATH": str(tmp_path / "other")}, 1, False)
    result = call([sys.executable, "-c", "import torch; print('went on')"], env=env)
    assert (result.stdout, result.returncode) == ("went on\n", 0)
    warning = "convolutions of this process are PyTorch's: it was built for another PyTorch"
    assert (warning in result.stderr) == (result.stderr != "") == said


@pytest.mark.parametrize("text", [MISSING, BROKEN])
def test_a_program_that_cannot_be_routed_fails(write, text):
    write("", "other/torch.py")
    write(text, "other/customconv.py")
    program = write("import sys; sys.path.insert(0, 'other'); import torch; print('went on')")
    result = call([*RUN, program])
    assert "other/customconv.py" in result.stderr
    assert (result.stdout, result.returncode) == ("", 1)


def test_the_command_does_not_load_torch_itself(write):
    """With OMP_PROC_BIND, torch binds the thread that loads it to a core, and so a program."""
    program = write("import os; print(os.sched_getaffinity(0))")
    result = call([*RUN, program], env={**os.environ, "OMP_PROC_BIND": "true"})
    assert result.stdout == f"{os.sched_getaffinity(0)}\n"


RANK = """
import os, sys
import torch
import customconv
print(os.environ["RANK"], sys.argv[1:], customconv.is_enabled())
"""


@pytest.mark.parametrize(
    "how",
    [
        ["--no-python", *RUN],
        ["-m", "customconv", "run"],
    ],
)
def test_torchrun_starts_it(write, how):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *how]
    result = call([*command, write(RANK), "--lr", "1"])
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0 ['--lr', '1'] True\n"


def test_it_starts_torchrun(write):
    command = [*RUN, "-m", "torch.distributed.run", "--standalone"]
    result = call([*command, write(RANK), "--lr", "1"])
    assert result.stdout == "0 ['--lr', '1'] True\n"


TUNE = [sys.executable, "-m", "customconv", "tune"]
DEVICE = 42  # an index that no machine has
# A program that plans a convolution on a GPU that is not there; times are made up.
TUNED = f"""
import sys
import customconv
import torch
from customconv import _bind, measure, plans_file

tuning = sys.modules["customconv.tuning"]
plans_file.hosts = lambda: {{{DEVICE}: plans_file.Host("Test GPU", (9, 0), "13.0", "1.0", "x")}}
_bind.device_properties = lambda index: _bind.DeviceProperties()
tuning.measure_on_gpu = lambda index, problem, settled, plans: measure.Measured(
    tuple(1.0 / (1 + i) for i in range(len(plans))), None, False
)
print(sys.argv[1:], customconv.is_enabled())
_bind.decide({DEVICE}, _bind.ConvProblem(input=(1, 8, 9, 9), weight=(8, 8, 3, 3)))
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3)])
def test_a_program_is_tuned_when_it_ends(write, tmp_path, end, code):
    result = call([*TUNE, write(TUNED + end), "--save", "x"])
    assert result.returncode == code
    assert result.stdout == "['--save', 'x'] True\n"
    assert result.stderr.startswith("customconv: 1 convolutions tuned in ")
    plans = json.loads((tmp_path / "customconv-plans.json").read_text())["plans"]
    assert [plan["gpu"] for plan in plans] == ["Test GPU"]


@pytest.mark.parametrize("save", [["--save", "a.json"], ["--save=a.json"]])
def test_the_file_for_the_plans_can_be_named(write, tmp_path, save):
    write(TUNED + "import os; os.chdir('/')")  # the path is that of the start
    assert call([*TUNE, *save, "-m", "program"]).returncode == 0
    assert (tmp_path / "a.json").exists()


@pytest.mark.parametrize("end", ["1 / 0", "raise KeyboardInterrupt"])
def test_a_program_that_fails_is_not_tuned(write, tmp_path, end):
    result = call([*TUNE, write(TUNED + end)])
    assert "customconv: nothing was tuned, because the program failed" in result.stderr
    assert os.listdir(tmp_path) == ["program.py"]


def test_a_program_without_torch_is_not_tuned(write, tmp_path):
    result = call([*TUNE, write("print('done')")])
    assert result.stdout == "done\n"
    assert result.stderr == "customconv: nothing was tuned, because torch was not imported\n"
    assert os.listdir(tmp_path) == ["program.py"]


def test_children_of_a_tuned_program_are_not_tuned(write, tmp_path):
    program = """
        import os, subprocess, sys
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, __file__, "child"], check=True)
            if os.fork() == 0:
                sys.exit()
            os.wait()
        """
    result = call([*TUNE, write(dedent(program) + TUNED)])
    assert result.stdout.count("True") == 2
    assert result.stderr.count("customconv") == 2  # the report's heading, and the file's name


def test_run_does_not_tune(write, tmp_path):
    result = call([*TUNE, "-c", f"import os; os.system('{' '.join([*RUN, write(TUNED)])}')"])
    assert result.stderr == "customconv: nothing was tuned, because torch was not imported\n"
    assert os.listdir(tmp_path) == ["program.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "names no program"),
        (["--save", "x.json"], "names no program"),
        (["--save"], "expected one argument"),
        (["--stats", "x.py"], "unrecognized arguments: --stats"),
        (["--save", "/no/such/folder/x.json", "x.py"], "no file can be written in /no/such"),
    ],
)
def test_wrong_usage_of_tune_exits_with_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["tune", *arguments])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert "usage: python -m customconv tune [-h] [--save PATH]" in error
    assert words in error
