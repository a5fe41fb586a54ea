// Evaluates a model with the contracts alone: node evaluate.js HOST:PORT MODEL ENVIRONMENT.py
"use strict";
const { randomUUID } = require("node:crypto");
const path = require("node:path");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const PROTOS = path.join(__dirname, "..", "..", "..", "proto");
const definition = loader.loadSync("upcycle/api/taskset/v1/service.proto", {
  includeDirs: [PROTOS],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
});
const { TasksetService } = grpc.loadPackageDefinition(definition).upcycle.api.taskset.v1;

async function main(address, model, environment) {
  const planner = new TasksetService(address, grpc.credentials.createInsecure());
  const key = new grpc.Metadata();
  key.set("authorization", `Bearer ${process.env.UPCYCLE_OPERATOR_KEY}`);
  const call = (rpc, request) => promisify(planner[rpc]).call(planner, request, key);

  const tasks = ["koala-cart", "lunar-mail", "maple-auth"].map((service) => ({
    slug: service,
    scenario: "triage",
    args_json: JSON.stringify({ service, log: "worker killed, heap full" }),
  }));
  const registered = await call("RegisterTaskset", {
    taskset: {
      name: "from-node",
      split: "SPLIT_TRAIN",
      environment: { name: "triage", python: { path: path.resolve(environment) } },
      tasks,
    },
  });
  console.log(`${registered.name}: ${registered.num_tasks} tasks, revision ${registered.revision}`);

  const { run } = await call("SubmitRun", {
    request_id: randomUUID(), // sent again, the same id makes no second run
    spec: {
      taskset: registered.name,
      purpose: "PURPOSE_EVAL",
      policy: { model, channel: "CHANNEL_HEAD" },
      group_size: 4,
      sampling: { max_turns: 1, max_tokens_per_turn: 64 },
    },
  });
  let last = run;
  for await (const update of planner.WatchRun({ run_id: run.run_id }, key)) {
    last = update.run;
  }
  console.log(`${last.run_id} ${last.state} ${last.counts.settled} of ${last.counts.requested} episodes settled`);

  const { results } = await call("GetRun", { run_id: run.run_id, include_results: true });
  for (const one of results) {
    console.log(`${one.task_slug} member ${one.member} reward ${one.reward.toFixed(2)} ${one.trajectory_id}`);
  }
  planner.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(`${error.code ?? ""} ${error.details ?? error.message}`);
  process.exit(1);
});
