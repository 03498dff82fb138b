"""`decide`: one request, one policy, one view of the cluster, one Decision; every road to a verdict leads here."""

from collections.abc import Mapping, Sequence

import msgspec

from webhook.decision import (
    answers,
    apply,
    exemptions,
    finding,
    fit,
    identity,
    injected,
    injection,
    placement,
    subject,
    updates,
    wording,
)
from webhook.decision.answers import Answers
from webhook.decision.apply import Context
from webhook.decision.exemptions import EXEMPT, Exempted
from webhook.decision.facts import Facts, FactSource, Note
from webhook.decision.finding import Notes
from webhook.decision.injected import ANNOTATION, Injected
from webhook.decision.injection import Injection
from webhook.decision.placement import Placement
from webhook.decision.request import Request, TemplateChange
from webhook.decision.result import Decision, Finding, PatchOperation, Verdict
from webhook.decision.subject import Subject
from webhook.k8s import priority, workloads
from webhook.k8s.objects import PriorityClass, Scale, Workload
from webhook.k8s.workloads import WorkloadKind
from webhook.language import Tell, teller
from webhook.policy.active import ActiveRule, Policy, first_for
from webhook.policy.model import Mode, Rule


def judge(request: Request, policy: Policy, source: FactSource) -> Decision:
    """Decide on the published facts; if they would refuse for quota, read them fresh and decide again (rule 3)."""
    decision = decide(request, policy, source.current())
    if not decision.stale:
        return decision
    fresh = source.fresh(request.namespace)
    if fresh is None:
        return decide(request, policy, source.current(), fresh_failed=True)
    return decide(request, policy, fresh)


def decide(request: Request, policy: Policy, facts: Facts, *, fresh_failed: bool = False) -> Decision:
    """What we answer to `request` under `policy`, as far as `facts` tell.

    Pure: the same three in, the same Decision out. `stale` in the answer asks for fresh facts (see `judge`);
    `fresh_failed` says that they could not be had, so that `quota.onUnknown` decides.
    """
    row = _row(request)
    notes = Notes()
    if row is None or _is_untouched(request, policy, row, notes):
        return Decision(id=request.id, verdict="allow", mode=policy.spec.mode, findings=notes.findings)
    return _Judgement(request, policy, answers.ask(facts, fresh_failed), row, notes).decide()


def unjudged(request: Request, policy: Policy, code: str, message: str) -> Decision:
    """Allowed with a warning because no judgement was reached: the time was spent, or an error of ours came between."""
    return Decision(
        id=request.id,
        verdict="allow",
        mode=policy.spec.mode,
        findings=(Finding(code, message),),
        warnings=(wording.warning(message),) if policy.spec.mode != "audit" else (),
    )


# -- what is never judged ---------------------------------------------------------------------------------------------


def _row(request: Request) -> WorkloadKind | None:
    """The kind that the request is about; for a Scale the kind that is scaled (W25), None if it is none of ours."""
    if request.sub_resource == "scale":
        return _SCALED.get(request.resource, _UNKNOWN_SCALED)
    row = workloads.by_kind(request.kind, request.group)
    return row if row is not None or not request.sub_resource else _OTHER


_SCALED = {row.resource: row for row in workloads.KINDS.values() if row.scales}
_UNKNOWN_SCALED = WorkloadKind("Scale", "", "", "", "")
_OTHER = WorkloadKind("", "", "", "", "")


def _is_untouched(request: Request, policy: Policy, row: WorkloadKind, notes: Notes) -> bool:
    """Rule 2 and its neighbours: what is allowed without a look at rules, in no case patched."""
    if request.namespace in policy.never_judged or request.operation not in ("CREATE", "UPDATE"):
        return True
    if request.sub_resource and request.sub_resource != "scale":
        tell = teller(policy.spec.language, "decision")
        notes.add("SubresourceIgnored", tell("subresource", subresource=request.sub_resource))
        return True
    if row is not _UNKNOWN_SCALED and row.kind not in policy.kinds:
        return True
    if request.object is None:
        return True
    old = request.old_object.metadata if request.old_object is not None else None
    if old is not None and old.deletion_timestamp:  # the new object's is client data, which nothing may hang on (H1)
        notes.add("Deleting", teller(policy.spec.language, "decision")("deleting"))
        return True
    if row.kind == "Pod":
        return request.operation == "UPDATE" or identity.is_mirror(request, request.object.metadata)
    return row.kind == "ReplicaSet" and workloads.is_deployment_controller(request.user.name)


# -- one judgement ----------------------------------------------------------------------------------------------------


class _Judgement:
    """The state of one decision, from the namespace's labels to the verdict."""

    rule: Rule | None = None
    injection: Injection | None = None
    noticed_before = 0
    ask: fit.Ask | None = None
    stale = False
    change: TemplateChange | None = None
    classes: Mapping[str, PriorityClass] | None = None
    pool_sizes: Mapping[str, int] | None = None
    class_chosen: bool | None = None
    _context: Context | None = None

    def __init__(self, request: Request, policy: Policy, facts: Answers, row: WorkloadKind, notes: Notes) -> None:
        self.request = request
        self.policy = policy
        self.facts = facts
        self.row = row
        self.notes = notes
        self.is_scale = request.sub_resource is not None and subject.is_scale(request)
        self.by_controller = identity.is_w19(request, policy.spec)
        self.mode: Mode = policy.spec.mode
        self.patch: list[PatchOperation] = []

    def decide(self) -> Decision:
        labels = self.facts.namespace_labels(self.request.namespace)
        if labels is None:
            self._namespace_unknown()
        elif not (rules := self.policy.rules_for(labels)):
            self._no_rule()
        else:
            new = self._subject()
            if new is None:
                self._parent_unknown()
            elif self.is_scale and new.metadata.deletion_timestamp:
                self.notes.add("Deleting", self._say("deleting"))
            else:
                self._judge(new, rules)
        return self._decision()

    def _judge(self, new: Subject, rules: Sequence[ActiveRule]) -> None:
        rule = first_for(rules, new.pod_metadata.labels or {})
        old = self._old_subject() if self.request.old_object is not None else None
        self._gather(new, old)
        if rule is None:
            self._no_rule()
            return
        self.rule = rule
        self.mode = rule.mode or self.policy.spec.mode
        ask = self.ask = fit.ask(self.request, new, old, self.facts, self.policy)
        if not (ask.is_gpu or self._concerns_us(new)):
            self.notes.add("NotGpu", self.tell("not_gpu"))
            return
        name = new.spec.priority_class_name
        if self.is_scale:
            if self._exempted(new):
                return
        elif self._is_exempt(new, old) or (self.by_controller and self._is_left_alone(new)):
            return
        else:
            name = self._place(new, old, rule)
        if ask.problems:
            fit.note_resources(ask, self.notes, self.policy.spec.language)
        if new.spec.resource_claims:
            fit.note_claims(self.facts.quotas(self.request.namespace), self.notes, self.policy.spec.language)
        if self.by_controller and not self.is_scale:
            return
        default = self._default_class(new, rule) if not name or old is not None else ""
        quotas = self.facts.quotas(self.request.namespace)
        if new.is_pod and fit.plainly_fits(ask, name or default, quotas, self.policy):
            return
        placed = fit.Placed(name or default, default, self.change == "changed")
        self.stale = fit.check(ask, placed, self.request, self.context, self.policy, self.facts, self.notes)

    def _gather(self, new: Subject, old: Subject | None) -> None:
        self.classes, self.pool_sizes = self.facts.gather(self.request.namespace, self.policy.spec.pool_label)
        self.class_chosen = self._chosen(new)
        if old is not None:
            self.change = self._template_change(new, old)

    def _concerns_us(self, new: Subject) -> bool:
        """Whether an object without GPU amounts is judged."""
        return self.policy.spec.applies_to == "allWorkloads" or bool(new.spec.resource_claims)

    def _is_left_alone(self, new: Subject) -> bool:
        """Pods made for a DaemonSet: its controller chose their node, whatever kinds the policy lists (N15, N16)."""
        if not identity.is_daemon_pod(self.request, new, self.policy.spec):
            return False
        self.notes.add("ControllerPod", self.tell("controller_left"))
        return True

    # -- who and what --

    def _subject(self) -> Subject | None:
        """The object under judgement; for a Scale the parent with the new number of replicas, None if unreadable."""
        found = self.request.object
        if isinstance(found, Scale):
            return self._scaled(found)
        assert found is not None, "see _is_untouched"
        return subject.of_object(self.row, found, self.request.name or subject.shown_name(found.metadata))

    def _old_subject(self) -> Subject | None:
        old = self.request.old_object
        if isinstance(old, Scale):
            return self._scaled(old)
        if isinstance(old, Workload) and self.request.operation == "UPDATE":
            return subject.of_object(self.row, old, self.request.name or subject.shown_name(old.metadata))
        return None

    def _scaled(self, scale: Scale) -> Subject | None:
        if self.row is _UNKNOWN_SCALED:
            return None
        parent = self.facts.parent(self.request.namespace, self.row.kind, self.request.name)
        if parent is None:
            return None
        scaled = msgspec.structs.replace(
            parent, spec=msgspec.structs.replace(parent.spec, replicas=scale.spec.replicas)
        )
        return subject.of_object(self.row, scaled, self.request.name)

    def _exempted(self, new: Subject) -> Exempted | None:
        spec = self.policy.spec
        template = None if new.is_pod else new.pod_metadata
        found = exemptions.of_request(self.request, spec, new.metadata, template)
        if found is None and self.by_controller and identity.may_carry_exemption(self.request, new, spec):
            mark = (new.pod_metadata.annotations or {}).get(EXEMPT)
            found = exemptions.of_mark(mark, spec, self.request.now) if mark else None
        if found is not None:
            reason = self.tell("exempt_reason", reason=found.reason) if found.reason else ""
            self.notes.add("Exempt", self.tell("exempt", name=found.name, reason=reason))
            if found.kind == "break-glass":
                self.notes.add("BreakGlass", self.tell("break_glass", ends=found.ends, reason=found.reason))
        return found

    def _is_exempt(self, new: Subject, old: Subject | None) -> bool:
        """Handle exemption: mark the template of an exempt request, take forged marks away from everybody else's."""
        found = self._exempted(new)
        marked = (new.pod_metadata.annotations or {}).get(EXEMPT)
        if old is not None and (self.change == "same" or new.kind == "Job"):
            return found is not None
        if found is not None:
            if not new.is_pod and marked != found.mark:
                self._annotate(f"{new.row.template}/metadata", new.pod_metadata.annotations, EXEMPT, found.mark, new)
            return True
        if self.change == "dropped":  # the result will be the old template, with the mark it had
            return False
        if marked is not None and not self.by_controller:
            self._annotate(f"{new.row.template}/metadata", new.pod_metadata.annotations, EXEMPT, None, new)
            self.notes.add("ExemptionRemoved", self.tell("exemption_removed", annotation=EXEMPT), "warn")
        return False

    # -- placement --

    def _place(self, new: Subject, old: Subject | None, rule: Rule) -> str | None:
        """Patch what the rule wants; returns the class that the pods will have."""
        usual, spec = None, self.policy.spec
        if old is None and injected.read(new.metadata) is None:
            usual = injection.usual(new.row, new.spec, rule, spec, self.classes)
        controlled = self.by_controller and identity.is_made_by_controller(self.request, new, spec)
        if usual is not None:
            name = self._inject(new, usual, None)
        else:
            name = self._place_closely(new, old, self.context, controlled)
        if new.kind == "Job" and old is not None:
            self.patch = []  # a Job's template is immutable (H3)
        elif self.request.phase == "mutate":
            return name
        if self.request.phase == "validate":
            self._check_placed(controlled)
        return new.spec.priority_class_name

    def _place_closely(
        self,
        new: Subject,
        old: Subject | None,
        context: Context,
        controlled: bool,
    ) -> str | None:
        """`_place` where the object, or what it was, has a placement or a record of ours."""
        before, records = placement.of(new.spec), self._records(new, old)
        own = injected.strip(before, records, context.pool_label)
        if old is not None and self.change == "same":
            self._leave(new, old, own, context)
            return before.priority_class
        if old is not None and self.change == "dropped":
            after = placement.of(old.spec)
            self._restore(new, old, before, after)
            return after.priority_class
        kept = self._conflicts(new, old, own, records, context, controlled)
        added = injection.injection(new.row, new.spec, before, own, context, kept, self.notes)
        return self._inject(new, added, records[0])

    def _template_change(self, new: Subject, old: Subject | None) -> TemplateChange | None:
        if old is None or self.is_scale:
            return None
        label = self.policy.spec.pool_label
        return updates.template_change(self.request, new.spec, old.spec, self._records(new, old), label)

    @staticmethod
    def _records(new: Subject, old: Subject | None) -> tuple[Injected | None, ...]:
        return (injected.read(new.metadata), injected.read(old.metadata) if old is not None else None)

    def _leave(self, new: Subject, old: Subject, own: Placement, context: Context) -> None:
        """The template did not change: nor do we change it, even where the policy has (H9, B59)."""
        self._keep_record(new, old)
        if apply.conflicts(new.spec, new.row.dotted, own, context):
            drifted = True
        else:
            after, _ = apply.apply_rule(placement.of(new.spec), own, context, set(), Notes())
            drifted = not placement.same(after, placement.of(new.spec))
        if drifted and new.kind != "Job":
            self.notes.add("PolicyDrift", context.tell("drift"), "warn")

    def _restore(self, new: Subject, old: Subject, before: Placement, after: Placement) -> None:
        """A client dropped some or all of our fields: put the old template back, so that nothing rolls out (H10)."""
        self.patch += placement.patch(new.row.pod_spec, new.spec, before, after, like=old.spec)
        self._keep_record(new, old)

    def _conflicts(
        self,
        new: Subject,
        old: Subject | None,
        own: Placement,
        records: tuple[Injected | None, ...],
        context: Context,
        controlled: bool,
    ) -> set[str]:
        """Refuse, or note, what stands against the rule; returns the codes of conflicts that are left as they are."""
        rule, kept = context.rule, set()
        found = [*apply.conflicts(new.spec, new.row.dotted, own, context), *self._node_name(new, context)]
        before = []
        if found and old is not None:
            old_own = injected.strip(placement.of(old.spec), records, context.pool_label)
            before = [*apply.conflicts(old.spec, old.row.dotted, old_own, context), *self._node_name(old, context)]
        for conflict in found:
            on_conflict = rule.on_priority_conflict if conflict.code == "PriorityConflict" else rule.on_pool_conflict
            is_new = conflict not in before
            if controlled:
                self.notes.add("ControllerPod", self.tell("controller_pod", what=conflict.headline))
            elif on_conflict == "override" and is_new and not _is_system(own.priority_class):
                continue  # the rule's class takes its place (see `apply`)
            elif on_conflict == "deny" and is_new:
                self.notes.items.append(_denying(conflict))
            else:
                self.notes.add(conflict.code, conflict.headline, "warn")
            kept.add(conflict.code)
        return kept

    def _node_name(self, which: Subject, context: Context) -> list[finding.Note]:
        """What is wrong with a node named outright, in a Pod, or in a template whose pods would all fail (N17)."""
        node = which.spec.node_name
        if not node or not context.rule.pools:
            return []
        labels = self.facts.node_labels(node)
        if labels is None:
            self.notes.add("FactsUnknown", self.tell("facts_unknown_node", node=node), "warn")
            return []
        problem = apply.node_name_problem(f"{which.row.dotted}.nodeName", node, labels, context)
        return [problem] if problem is not None else []

    def _inject(self, new: Subject, added: Injection, present: Injected | None) -> str | None:
        """Patch what is added, and our record of it in the place of the `present` one."""
        self.patch += added.patch
        wanted = added.record if added.text else None
        if wanted != present or (present is None and ANNOTATION in (new.metadata.annotations or {})):
            self._annotate("/metadata", new.metadata.annotations, ANNOTATION, added.text or None)
        self.injection, self.noticed_before = added, len(self.notes.items)
        return added.priority_class

    def _note_injected(self, added: Injection) -> None:
        """Tell what is added, where it was noticed among the findings."""
        told = [*added.notes]
        if added.pools and self.pool_sizes is not None and not any(map(self.pool_sizes.get, added.pools)):
            pools = self.tell("pool_empty", label=self.policy.spec.pool_label, pools=", ".join(added.pools))
            told.append(finding.Note("PoolEmpty", pools, "warn"))
        self.notes.items[self.noticed_before : self.noticed_before] = told

    def _check_placed(self, controlled: bool) -> None:
        """In /validate a CREATE that would still be patched lacks its placement: our mutating half was skipped."""
        if self.patch and self.request.operation == "CREATE" and self.mode != "audit" and not self.notes.denials:
            missing = self.tell("holder_join").join(dict.fromkeys(self._missing(each.path) for each in self.patch))
            headline = self.tell("not_placed", missing=missing)
            denies = self.policy.spec.on_unplaced == "deny" and not controlled
            rows = (("fix", self.tell("not_placed_fix")),)
            self.notes.add("NotPlaced", headline, "deny" if denies else "warn", rows)
        self.patch = []

    def _missing(self, path: str) -> str:
        """What an operation of the patch stands for, in words of the manifest."""
        if "/affinity" in path:
            return self.tell("missing_pool", label=self.policy.spec.pool_label)
        if path.endswith(_pointer(EXEMPT)):
            return self.tell("forged_mark", annotation=EXEMPT)
        if "/annotations" in path:
            return self.tell("missing_note")
        return "tolerations" if "/tolerations" in path else "priorityClassName"

    def _keep_record(self, new: Subject, old: Subject) -> None:
        """Our record stays as it was, whatever a client made of it."""
        known = injected.read(old.metadata)
        wanted = (old.metadata.annotations or {}).get(ANNOTATION) if known is not None else None
        if (new.metadata.annotations or {}).get(ANNOTATION) != wanted:
            self._annotate("/metadata", new.metadata.annotations, ANNOTATION, wanted)

    def _annotate(
        self,
        path: str,
        present: Mapping[str, str] | None,
        key: str,
        value: str | None,
        template: Subject | None = None,
    ) -> None:
        """Add or remove one annotation of the metadata at `path`; parents that are missing are made (V20, B22, B24)."""
        if value is None:
            self.patch.append(PatchOperation("remove", f"{path}/annotations/{_pointer(key)}"))
        elif present is not None:
            self.patch.append(PatchOperation("add", f"{path}/annotations/{_pointer(key)}", value))
        elif template is not None and not _has_metadata(template):
            self.patch.append(PatchOperation("add", path, {"annotations": {key: value}}))
        else:
            self.patch.append(PatchOperation("add", f"{path}/annotations", {key: value}))

    @property
    def context(self) -> Context:
        """What the rule is applied with, once there is one; most decisions end without."""
        if self._context is None:
            rule, spec = self.rule, self.policy.spec
            assert rule is not None, "see _judge"
            self._context = Context(
                rule=rule,
                pool_label=spec.pool_label,
                tell=teller(spec.language, "decision", namespace=self.request.namespace, rule=rule.name),
                classes=self.classes,
                labels_of=self.facts.node_labels,
                class_chosen=self.class_chosen,
            )
        return self._context

    @property
    def tell(self) -> Tell:
        """Words a message for the author."""
        return self.context.tell

    def _chosen(self, new: Subject) -> bool | None:
        """Whether the user chose the class (O2); only a Pod's may come from the Priority plugin (P1)."""
        if not new.is_pod:
            return True if new.spec.priority_class_name else None
        if self.request.replayed:
            return self.request.class_chosen
        named = new.spec.priority_class_name
        known = (self.classes or {}).get(named) if named else None
        if known is None or not known.global_default:
            return None
        return priority.class_chosen_by_user(new.metadata.managed_fields)

    def _default_class(self, new: Subject, rule: Rule) -> str:
        """What pods of a template without a class get: the rule's, if Pods are judged, or the globalDefault (P16)."""
        named, classes = rule.priority_class_name, self.classes or {}
        if named in classes and not new.is_pod and "Pod" in self.policy.kinds:
            return named or ""
        default = priority.global_default(classes)
        return default.metadata.name if default is not None else ""

    # -- ends without a judgement --

    def _namespace_unknown(self) -> None:
        denies = self.policy.spec.quota.on_unknown == "deny" and not self.by_controller
        if denies and self._adds_something():
            rows = (("fix", self._say("quota_unknown_fix")),)
            self.notes.add("FactsUnknown", self._say("facts_unknown_labels_deny"), "deny", rows)
        else:
            self.notes.add("FactsUnknown", self._say("facts_unknown_labels"), "warn")

    def _adds_something(self) -> bool:
        """Whether a request could bring GPUs that are not there yet: shrinking and labels always pass (rule 2)."""
        new = self._subject()
        if new is None:
            return False
        old = self._old_subject()
        ask = fit.ask(self.request, new, old, self.facts, self.policy)
        if not (ask.is_gpu or self._concerns_us(new)):
            return False
        return fit.grows(ask) or self._template_change(new, old) == "changed"

    def _no_rule(self) -> None:
        self.notes.add("NoRule", self._say("no_rule", policy=self.policy.name))

    def _parent_unknown(self) -> None:
        kind = self.row.kind if self.row is not _UNKNOWN_SCALED else self.request.resource
        headline = self._say("parent_unknown", kind=kind, name=self.request.name)
        self.notes.add("ScaleParentUnknown", headline, "warn")

    def _say(self, name: str, /, **values: object) -> str:
        """A message where there is no rule."""
        return teller(self.policy.spec.language, "decision", namespace=self.request.namespace)(name, **values)

    # -- the verdict --

    def _decision(self) -> Decision:
        denials = self.notes.denials
        patch = tuple(self.patch) if self.request.phase == "mutate" else ()
        enforced: Verdict = "deny" if denials else "patch" if patch else "allow"
        verdict, would = (enforced, None) if self.mode == "enforce" else self._in_mode(enforced, bool(patch))
        if self.injection is not None and self.request.phase == "mutate" and (enforced != "deny" or verdict == "patch"):
            self._note_injected(self.injection)  # a refusal adds nothing and tells nothing of it
        decision = Decision(
            id=self.request.id,
            verdict=verdict,
            rule=self.rule.name if self.rule else None,
            mode=self.mode,
            findings=self.notes.findings,
            warnings=wording.warnings(self.notes, self.mode, verdict),
            patch=patch if verdict == "patch" else (),
            gpu=self.ask.gpu if self.ask else {},
            asks=self.ask.asks if self.ask else {},
            facts=self.facts.recorded(),
            template_change=self.change,
            class_chosen=self.class_chosen,
            note=self._admitted(verdict) if self.request.phase == "validate" else None,
        )
        if not (denials or would or self.stale):
            return decision
        message = wording.denial(denials, self.policy.spec, self.request.id) if denials else ""
        return msgspec.structs.replace(decision, would=would, message=message, stale=self.stale)

    def _in_mode(self, enforced: Verdict, has_patch: bool) -> tuple[Verdict, Verdict | None]:
        """What another mode answers, and what enforce would have answered where that differs (DESIGN 5.1)."""
        if self.mode == "audit":
            return "allow", enforced if enforced != "allow" else None
        if self.mode == "warn" and enforced == "deny":
            return "patch" if has_patch else "allow", "deny"
        return enforced, None

    def _admitted(self, verdict: Verdict) -> Note | None:
        """What to remember of an admission whose pods do not exist yet: never of a dry run."""
        if verdict == "deny" or self.request.dry_run or self.ask is None:
            return None
        return fit.note(self.ask, self.request)


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _denying(conflict: finding.Note) -> finding.Note:
    return finding.Note(conflict.code, conflict.headline, "deny", conflict.rows)


def _is_system(name: str | None) -> bool:
    return name is not None and name.startswith("system-")


def _has_metadata(new: Subject) -> bool:
    template = workloads.template_of(new.workload) if new.workload is not None else None
    return new.is_pod or (template is not None and template.metadata is not None)
