"""A session of the control channel: at most one task in progress, kept while no client is connected."""

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from upcycle.environment.channel.frames import INVALID_PARAMS, INVALID_REQUEST, SERVER_ERROR, ChannelError
from upcycle.environment.channel.params import arguments_of, text_param
from upcycle.environment.tools import ToolResult, bounded_text, no_result_within
from upcycle.errors import InfrastructureError, ScenarioError, UnknownName, UpcycleError
from upcycle.generator import parent_of
from upcycle.guidance import attempt_of, guided_prompt
from upcycle.judge_calls import JUDGE_CALLS, JudgeCalls
from upcycle.raised import deed, own_traceback
from upcycle.scenario import ScenarioPlay
from upcycle.states import StateEntry, StateLog
from upcycle.transcripts import Answer, Transcript

if TYPE_CHECKING:
    from upcycle.environment.core import Environment


_NAMING_S: Final = 1.0
"""So long before its caller gives up, a start names the server that it waits for."""
MAX_TRACEBACK_CHARS: Final = 6000
PARKED_S: Final = 900.0
"""How long a started task waits for its client to come back."""


class Session(Protocol):
    """The state behind one `hello`. Its calls raise ChannelError."""

    @property
    def session_id(self) -> str: ...

    @property
    def is_unused(self) -> bool:
        """No task was started in it yet: a grade can only mean a task of another session."""
        ...

    @property
    def has_task(self) -> bool:
        """A task was started and not yet graded or cancelled."""
        ...

    @property
    def is_busy(self) -> bool:
        """A start or grade is running."""
        ...

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        failed: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Play a scenario to its prompt; a task already held is dropped. failed: an attempt `{"answer",
        "trajectory"}` after which the scenario guides. timeout_s: how long the caller waits, so that what
        does not answer in time is named."""
        ...

    async def generate(self, name: str, seed: int, parent: Mapping[str, Any]) -> dict[str, Any]:
        """`{"args"}` of a new task of a scenario. parent: `{"args", "solved"}` of the task that it is made
        of; with `"proposal"`, an answer `{"answer", "trajectory"}` to that task. A task that is held
        stays."""
        ...

    async def grade(
        self, answer: Any, trajectory: Mapping[str, Any] | None, *, judges: bool = False
    ) -> dict[str, Any]:
        """Grade the task with this answer; the task is over then. judges: the caller asks judges; then the
        result may be `{"judge": question}`, and `judged` goes on."""
        ...

    async def judged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with what a judge said."""
        ...

    async def cancel(self) -> dict[str, Any]:
        """Interrupt a running start or grade and drop the task."""
        ...

    async def list_tools(self) -> dict[str, Any]:
        """The result of `tools.list`."""
        ...

    async def last_state(self) -> dict[str, Any]:
        """The result of `tasks.state`: the state before the grade."""
        ...

    async def call_tool(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of `tools.call` with these params."""
        ...

    async def shut_down(self) -> dict[str, Any]:
        """The result of `environment.close`: what `@env.shutdown` declares has run."""
        ...

    async def interrupt(self) -> None:
        """Stop a running start or grade, if any; its own caller gets an error."""
        ...

    async def close(self) -> None:
        """End it with its task."""
        ...


def new_session_id() -> str:
    """An id that is not guessed: a client that has it may go on with the session."""
    return f"sess-{secrets.token_hex(8)}"


class LocalSession:
    """A session whose scenario and tools run in this process."""

    def __init__(self, environment: "Environment") -> None:
        self.session_id = new_session_id()
        self.is_unused = True
        self._environment = environment
        self._play: ScenarioPlay | None = None
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._grading: asyncio.Task[dict[str, Any]] | None = None
        self._judges: JudgeCalls | None = None
        self._states: StateLog | None = None
        self._last_state: StateEntry | None = None

    @property
    def has_task(self) -> bool:
        """A task was started and not yet graded or cancelled."""
        return self._play is not None

    @property
    def is_busy(self) -> bool:
        """A start or grade is running, or waits for a judge."""
        return self._running is not None or self._grading is not None

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        failed: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Play a scenario to its prompt; a task already held is dropped. Raises ChannelError."""
        self._refuse_if_busy()
        self.is_unused = False
        open_s = None if timeout_s is None else max(timeout_s - _NAMING_S, timeout_s / 2)
        return await self._interruptible(self._start(name, arguments, failed, open_s))

    async def generate(self, name: str, seed: int, parent: Mapping[str, Any]) -> dict[str, Any]:
        """`{"args"}` of a new task of a scenario. Raises ChannelError."""
        self._refuse_if_busy()
        self.is_unused = False
        return await self._interruptible(self._generate(name, seed, parent))

    async def grade(
        self, answer: Any, trajectory: Mapping[str, Any] | None, *, judges: bool = False
    ) -> dict[str, Any]:
        """Grade the task with this answer; the task is over then. judges: the caller asks judges; then the
        result may be `{"judge": question}`, and `judged` goes on. Raises ChannelError."""
        self._refuse_if_busy()
        if self._play is None:
            raise ChannelError(INVALID_REQUEST, "no task in progress; call tasks.start first")
        if not judges:
            return await self._interruptible(self._grade(answer, trajectory))
        self._judges = JudgeCalls()
        self._grading = asyncio.ensure_future(self._grade(answer, trajectory, self._judges))
        return await self._until_asked(self._grading, self._judges)

    async def judged(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with what a judge said. Raises ChannelError where no judge was asked."""
        grading, judges = self._grading, self._judges
        if self._running is not None or grading is None or judges is None or not judges.answer(params):
            raise ChannelError(INVALID_REQUEST, f"no judge was asked question {params.get('id')!r}")
        return await self._until_asked(grading, judges)

    async def cancel(self) -> dict[str, Any]:
        """Interrupt a running start or grade and drop the task."""
        await self.interrupt()
        await self._drop()
        return {"cancelled": True}

    async def list_tools(self) -> dict[str, Any]:
        """Attached MCP servers are started for it, if they are not yet."""
        await self._environment.open()
        return {"tools": [tool.spec.to_row() for tool in self._environment.tools.values()]}

    async def call_tool(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What a tool refuses or raises, or takes too long for, is a result."""
        if self.is_busy:
            raise ChannelError(INVALID_REQUEST, "a start or grade is running")
        await self._environment.open()
        name, arguments = text_param(params, "name"), arguments_of(params, "arguments")
        timeout_s = params.get("timeout_s")
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._environment.call_tool(name, arguments)
        except TimeoutError:
            result = ToolResult(no_result_within(name, timeout_s), is_error=True)
        # First, lest the limit leaves half a secret, which is none that could be cut out.
        text, cut = bounded_text(self._environment.servers.hidden.cut(result.text), params.get("max_bytes"))
        row: dict[str, Any] = {"content": text, "is_error": result.is_error, "truncated": cut}
        if result.images:
            row["images"] = [image.to_row() for image in result.images]
        self._last_state = None
        return {**row, **_state_row(await self._states.next() if self._states is not None else None)}

    async def last_state(self) -> dict[str, Any]:
        """Read once after the last tool call."""
        self._refuse_if_busy()
        if self._states is not None and self._last_state is None:
            self._last_state = await self._states.next()
        return _state_row(self._last_state)

    async def close(self) -> None:
        """Drop the task."""
        await self.interrupt()
        await self._drop()

    async def shut_down(self) -> dict[str, Any]:
        """Drop the task and close the environment of this process."""
        await self.close()
        await self._environment.close()
        return {"closed": True}

    async def interrupt(self) -> None:
        """Stop a running start or grade, if any; its own caller gets an error."""
        for task in (self._running, self._grading):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._grading = None

    async def _generate(self, name: str, seed: int, parent: Mapping[str, Any]) -> dict[str, Any]:
        try:
            scenario, made_of = self._environment.scenario_named(name), parent_of(parent)
        except UpcycleError as error:
            raise ChannelError(INVALID_PARAMS, str(error), error.kind) from error
        return {"args": await scenario.generate(seed, made_of)}

    async def _start(
        self, name: str, arguments: Mapping[str, Any], failed: Mapping[str, Any] | None, open_s: float | None
    ) -> dict[str, Any]:
        await self._drop()
        await self._environment.open(limit_s=open_s)
        try:
            reply = await self._played_to_prompt(name, arguments)
            return reply if failed is None else await self._guided(reply, name, arguments, failed)
        except BaseException:
            if self._environment.shuts_down:  # its caller ends the process, and has nothing to wait for
                await self._environment.close()
            raise

    async def _played_to_prompt(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            play = self._environment.scenario_named(name).play(arguments)
        except UpcycleError as error:
            raise ChannelError(INVALID_PARAMS, str(error), error.kind) from error
        states = self._environment.new_states()
        try:
            prompt = await play.start()
        except asyncio.CancelledError:
            await play.close()
            raise
        try:
            first = None if states is None else await states.first()
        except BaseException:
            await play.close()
            raise
        self._play, self._states = play, states
        shuts_down = {"shuts_down": True} if self._environment.shuts_down else {}
        return {"prompt": prompt, **_state_row(first), **shuts_down}

    async def _guided(
        self, reply: dict[str, Any], name: str, arguments: Mapping[str, Any], failed: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The reply to a start, its prompt with what the scenario says after a failed attempt."""
        try:
            guidance = await self._environment.scenario_named(name).guide(attempt_of(failed), arguments)
        except BaseException:
            await self._drop()
            raise
        said, parts = str(guidance), guidance.parts
        prompt = guided_prompt(reply["prompt"], said)
        return {**reply, "prompt": prompt, "guidance": said, "guidance_parts": parts}

    async def _grade(
        self, answer: Any, trajectory: Mapping[str, Any] | None, judges: JudgeCalls | None = None
    ) -> dict[str, Any]:
        JUDGE_CALLS.set(judges)  # of this task alone
        play, self._play = self._play, None
        assert play is not None  # noqa: S101 - checked by grade
        transcript = Transcript.from_json(trajectory) if trajectory else Transcript()
        if (states := self._states) is not None:
            if self._last_state is None:
                await states.next()
            self._states, self._last_state = None, None
            transcript = replace(transcript, states=states.values)
        try:
            return (await play.grade(Answer(answer, transcript))).to_json()
        except asyncio.CancelledError:
            await play.close()
            raise

    async def _drop(self) -> None:
        play, self._play, self._states, self._last_state = self._play, None, None, None
        if play is not None:
            await play.close()

    def _refuse_if_busy(self) -> None:
        if self._running is not None:
            raise ChannelError(
                INVALID_REQUEST, "a start or grade is running; wait for it or call tasks.cancel"
            )

    async def _until_asked(
        self, grading: "asyncio.Task[dict[str, Any]]", judges: JudgeCalls
    ) -> dict[str, Any]:
        async def asked_or_graded() -> dict[str, Any]:
            asked = asyncio.ensure_future(judges.next())
            try:
                await asyncio.wait({grading, asked}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                grading.cancel()
                await asyncio.wait([grading])
                raise
            finally:
                asked.cancel()
            if not grading.done():
                return {"judge": asked.result()}
            self._grading = None
            return grading.result()

        return await self._interruptible(asked_or_graded())

    async def _interruptible(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        task = asyncio.ensure_future(work)
        self._running = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._running = None
        if task.cancelled():
            if task.cancelling():
                raise ChannelError(SERVER_ERROR, "cancelled", "cancelled")
            raise ChannelError(
                SERVER_ERROR,
                "the scenario raised CancelledError, though nothing cancelled it",
                ScenarioError.kind,
            )
        return task.result()


def _state_row(state: StateEntry | None) -> dict[str, Any]:
    return {} if state is None else {"state": state.to_json()}


def as_channel_error(error: BaseException, environment: "Environment") -> ChannelError:
    """Any failure as an error frame's content, its kind kept. What says that the outside world failed has
    that kind."""
    hidden = environment.servers.hidden
    if environment.is_external(error):
        trace = _traceback_of(error, environment)
        return ChannelError(SERVER_ERROR, hidden.cut(str(error)), InfrastructureError.kind, trace)
    if isinstance(error, ChannelError):
        return error
    if isinstance(error, UnknownName):
        return ChannelError(INVALID_PARAMS, str(error), error.kind)
    kind = error.kind if isinstance(error, UpcycleError) else "error"
    text = deed(error) if isinstance(error, SystemExit) else str(error) or type(error).__name__
    return ChannelError(SERVER_ERROR, hidden.cut(text), kind, _traceback_of(error, environment))


def _traceback_of(error: BaseException, environment: "Environment") -> str:
    """Of what the environment's code raised, the author's lines; "" where it has none."""
    cause = error.__cause__ if isinstance(error, UpcycleError) and error.__cause__ is not None else error
    shown = own_traceback(cause, environment.source)
    return environment.servers.hidden.cut(shown)[-MAX_TRACEBACK_CHARS:]
