/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* RDMA verbs: what is posted, what completes, and how long both take. */
#include "completions.h"
#include "control.bpf.h"
#include "extended.bpf.h"
#include "extended_polls.bpf.h"

UPROBE(poll_cq_enter)
{
	struct thread thread = this_thread();
	struct poll_flight call = {.sp = PT_REGS_SP(ctx), .cq = PT_REGS_PARM1(ctx), .wc = PT_REGS_PARM3(ctx)};

	count_hit(hit_poll_cq);
	call.start_ns = bpf_ktime_get_ns();
	count_poll(thread, bpf_get_attach_cookie(ctx), call.start_ns);
	if (!is_beside(call.sp))
		put_flight(poll_flights, &thread, &call);
	return 0;
}

AT_RETURN(poll_cq_return)
{
	struct thread thread = this_thread();
	struct poll_flight *call = flight_of(poll_flights, &thread);
	struct seen seen = {.now = bpf_ktime_get_ns()};
	__s32 completed = PT_REGS_RC(ctx);

	if (!call || call->call || !is_return_of(call->sp, ctx))
		return 0;
	if (completed > 0 &&
	    bpf_probe_read_user(&seen.from.context, sizeof(seen.from.context), (void *)call->cq)) {
		add(&completions_unread, completed);
	} else if (completed > 0) {
		seen.from.tgid = thread.tgid;
		seen.at = call->wc;
		seen.cq = call->cq;
		seen.window = window_of(bpf_get_attach_cookie(ctx));
		add_context(thread.tgid, seen.from.context);
		count_time(thread.tgid, seen.from.context, timed_poll_cq, 0, seen.now - call->start_ns);
		for (int i = 0; i < MOST_COMPLETIONS && i < completed; i++) {
			take_completion(&seen);
			seen.at += sizeof(struct user_wc);
		}
		if (completed > MOST_COMPLETIONS)
			add(&completions_unread, completed - MOST_COMPLETIONS);
	}
	end_flight(poll_flights, &thread, call);
	return 0;
}

THREAD_END
int on_thread_end(void *ctx __attribute__((unused)))
{
	struct thread thread = this_thread();

	end_thread(post_flights, &thread);
	end_thread(poll_flights, &thread);
	end_thread(control_flights, &thread);
	return 0;
}

EXEC int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread thread = this_thread();

	thread.tid = tid_before_exec(ctx);
	end_thread(post_flights, &thread);
	end_thread(poll_flights, &thread);
	end_thread(control_flights, &thread);
	return 0;
}

SEC("raw_tp")
int forget(void *ctx __attribute__((unused)))
{
	drop_flights(post_flights);
	drop_flights(poll_flights);
	drop_flights(control_flights);
	drop_ended(shares);
	return 0;
}
