# SPDX-License-Identifier: Apache-2.0
"""colloc site resume, and the mail that says that a site was stopped."""

from html import escape

from slurm_colloc.audit.post import Texts, check_settings, mail_content, message_id, send
from slurm_colloc.cli.colloc.output import say, site
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError
from slurm_colloc.estimate.site_stop import Stop, why_stopped, write_stop
from slurm_colloc.feedback.user_histories import make_history_folder


def resume() -> None:
    """Place jobs again after too many were harmed. Harm of before counts no more."""
    config = site()
    reason = why_stopped(config.state_folder, late=True)
    if not reason:
        print("nothing had stopped this site")
        return
    make_history_folder(config.state_folder)
    write_stop(config.state_folder, Stop("", now()))
    print(f"jobs are placed again; they were not, since {reason}")


def tell_admins(config: SiteConfig, reason: str, *, late: bool = False) -> None:
    """Say that nothing is placed any more, or nothing late, by mail too where the site sends any."""
    verb = "gives no more pieces to jobs that wait" if late else "places no more jobs"
    recorded = "" if late else ", and are recorded as under the policy 'shadow'"
    text = (
        f"csub {verb} on '{config.cluster}': {reason}.\n\nThey run as asked{recorded}. Find out what is wrong: "
        "'colloc report --by signature', 'colloc job ID'. Then: 'colloc site resume'.\n"
    )
    say(f"stopped: csub {verb}: {reason}; they run as asked until 'colloc site resume'")
    settings = config.notices
    if settings.mode == "off":
        return
    try:
        check_settings(settings)
        for admin in settings.admins:
            texts = Texts(f"csub {verb}", text, f"<p>{escape(text)}</p>")
            send(mail_content(message_id([admin, text], settings), admin, texts, settings, now()), settings.sender)
    except CollocError as error:
        say(f"no mail was sent of it: {error}")
